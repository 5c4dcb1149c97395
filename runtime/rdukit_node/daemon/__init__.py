"""The daemon of a node: its socket, its protocol, its journal."""
