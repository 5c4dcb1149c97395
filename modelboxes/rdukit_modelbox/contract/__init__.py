"""The contract of a ``modelbox.yaml``: its parts as values, read with line numbers, checked against one another."""
