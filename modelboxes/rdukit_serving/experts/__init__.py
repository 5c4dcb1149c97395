"""Many experts of few architectures behind one server: what a bundle file says, what fits, and who is in memory."""
