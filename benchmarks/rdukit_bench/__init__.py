"""Benchmarks against what people use today; ``rdukit bench`` runs them."""
