"""The compiler: a traced graph in, a PEF out. Read ``pipeline.py`` first."""
