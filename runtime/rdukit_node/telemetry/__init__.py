"""What the node measures, and those who read it."""
