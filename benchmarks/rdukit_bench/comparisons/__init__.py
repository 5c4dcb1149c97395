"""Comparisons with what people use today: one module a question, each run in its own process. See ``model.py``."""
