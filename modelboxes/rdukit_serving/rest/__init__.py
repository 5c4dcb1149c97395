"""REST: the Open Inference Protocol, and what other routes share."""
