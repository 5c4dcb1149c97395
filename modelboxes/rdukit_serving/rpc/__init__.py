"""gRPC: the Open Inference Protocol, and the server that other services share."""
