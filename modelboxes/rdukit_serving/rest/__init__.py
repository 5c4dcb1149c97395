"""REST: the Open Inference Protocol, and code that other routes share."""
