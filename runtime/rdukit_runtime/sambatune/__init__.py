"""``sambatune``: compile and run a program, and report where its time goes, by the vendor's configuration and files."""
