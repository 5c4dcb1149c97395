"""What a process tells of itself: spans of traces (``spans``), and log lines with ids (``logs``)."""
