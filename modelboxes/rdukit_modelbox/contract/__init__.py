"""What a ``modelbox.yaml`` may say: its parts as values, read with line numbers, checked against one another."""
