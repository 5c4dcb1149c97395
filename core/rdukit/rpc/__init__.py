"""What all gRPC servers share."""
