"""Collectives of the ranks of a data-parallel program: exact sums through shared memory, or gloo between machines."""
