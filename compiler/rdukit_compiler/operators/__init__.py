"""Operators: their names, the form in which each is traced, and those that the device supports."""
