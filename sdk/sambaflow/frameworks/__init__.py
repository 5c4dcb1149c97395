"""Framework additions."""
