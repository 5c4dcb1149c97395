"""The emulated node: an operating system for RDUs, its daemon and its tools."""
