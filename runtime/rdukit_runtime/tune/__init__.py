"""``rdukit tune``: search options of a program's compile; the cost model prunes, and measurements decide."""
