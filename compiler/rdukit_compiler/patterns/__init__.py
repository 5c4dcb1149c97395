"""Fusion rules: their file syntax and how they match a traced graph."""
