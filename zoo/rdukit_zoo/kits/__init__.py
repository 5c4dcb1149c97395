"""Starter kits: short programs on the public clients, to run unchanged or to adapt."""
