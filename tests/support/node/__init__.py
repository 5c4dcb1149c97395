"""A daemon, its clients and faults."""
