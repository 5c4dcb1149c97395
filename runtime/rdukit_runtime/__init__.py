"""The runtime: a PEF in, numbers out; an operating system for emulated RDUs."""
