"""Sweeps: one training tried with several values of its parameters."""
