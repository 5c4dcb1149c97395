"""The page of a profiled program: verdict, advice, sections, pictures and source lines, in one HTML file."""
