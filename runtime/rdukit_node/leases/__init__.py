"""Leases of tiles, memory and IO: requests, placement, the queue, and leases as programs hold them."""
