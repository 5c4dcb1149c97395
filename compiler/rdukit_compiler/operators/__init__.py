"""Operators one by one: their names, the form in which each is traced, and which the device has."""
