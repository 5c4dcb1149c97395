"""A daemon, clients and faults for tests."""
