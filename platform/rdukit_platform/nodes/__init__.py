"""The emulated nodes as the platform sees them."""
