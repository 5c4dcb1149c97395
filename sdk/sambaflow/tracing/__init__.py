"""Tracing: a model's forward runs once on tensors without data, and the graph of it is recorded."""
