"""Quantized modules."""
