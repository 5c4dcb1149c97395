"""Definitions that every part of rdukit shares: errors, settings, hardware, the PEF format and the wire contracts."""

__version__ = "0.1.0"
