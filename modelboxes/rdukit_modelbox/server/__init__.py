"""A box's server: its gRPC service, what it serves, its metrics, its state."""
