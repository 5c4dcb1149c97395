"""Schemas of configurations."""
