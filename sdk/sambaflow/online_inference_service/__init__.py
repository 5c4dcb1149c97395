"""Online inference: the request queue."""
