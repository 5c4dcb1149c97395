"""Passes: each takes a graph or plan and returns a new one. ``pipeline.py`` has their order."""
