"""Compares a section's native kernels with its portable ones, on drawn inputs, before they are used."""
