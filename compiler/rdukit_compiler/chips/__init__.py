"""Model parallelism: one graph over several chips."""
