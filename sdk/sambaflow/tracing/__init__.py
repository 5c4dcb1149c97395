"""Tracing: run a model's forward once on tensors without data, and record its graph."""
