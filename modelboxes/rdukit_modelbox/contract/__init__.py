"""The contract of a ``modelbox.yaml``: its parts as values, read with line numbers and checked against each other."""
