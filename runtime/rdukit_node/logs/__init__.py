"""The node's log files: places, lines, rotation."""
