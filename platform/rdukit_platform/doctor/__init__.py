"""Checks of ``rdukit doctor`` about the platform."""
