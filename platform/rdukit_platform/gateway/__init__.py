"""The HTTP face of the platform."""
