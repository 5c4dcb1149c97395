"""Jobs and pipelines: states, what may be done to them, and their routes."""
