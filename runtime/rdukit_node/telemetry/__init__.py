"""Telemetry of the node: measurements and their readers."""
