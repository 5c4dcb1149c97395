"""A platform of real processes, a gateway with example jobs, contracts of backends and fences."""
