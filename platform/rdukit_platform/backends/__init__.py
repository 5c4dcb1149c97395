"""Ways to run a box: each a file with a class that satisfies ``BoxBackend``."""
