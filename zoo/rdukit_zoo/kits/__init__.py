"""Starter kits: short programs on the public clients, to run as they are and to begin one's own from."""
