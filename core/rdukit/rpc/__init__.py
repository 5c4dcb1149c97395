"""Building blocks of all gRPC servers."""
