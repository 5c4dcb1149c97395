"""Random modules against torch: compose them from a seed, run them on the device and in torch, shrink what differs."""
