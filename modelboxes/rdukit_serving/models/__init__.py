"""Served models: versions, their repository, and what decides which one answers."""
