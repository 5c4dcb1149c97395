"""The node's log files: where they lie, how their lines are written, how they rotate."""
