"""Which job runs next, and bringing back what got stuck."""
