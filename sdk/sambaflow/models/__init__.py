"""Models that ship with the SDK."""
