"""Commands of the runtime."""
