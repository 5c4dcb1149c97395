"""Capture of a forward pass: torch's calls are recorded, made functional and written as a model graph."""
