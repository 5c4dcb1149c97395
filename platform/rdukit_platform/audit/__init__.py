"""Who was let do what, and who was refused: an append-only log."""
