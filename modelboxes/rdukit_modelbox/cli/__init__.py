"""The commands of ``rdukit box``."""
