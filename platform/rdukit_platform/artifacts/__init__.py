"""Content-addressed artifacts and where they came from."""
