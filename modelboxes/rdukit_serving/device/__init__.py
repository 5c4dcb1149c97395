"""The process that runs one model, and the box's end of the connection to it."""
