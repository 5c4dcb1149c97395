"""``sambatune``: compile and run a program, and report its times, with the vendor's configuration and files."""
