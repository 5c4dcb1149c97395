"""What is broken on the node: errors, the faults diagnosed from them, what follows. See ``machine`` and ``store``."""
