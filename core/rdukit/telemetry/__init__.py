"""Telemetry of a process: spans of traces (``spans``), and log lines with ids (``logs``)."""
