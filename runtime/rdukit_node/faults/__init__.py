"""Fault management of the node: errors, faults diagnosed from them, actions. See ``machine`` and ``store``."""
