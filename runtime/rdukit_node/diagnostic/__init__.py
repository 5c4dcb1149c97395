"""Active diagnostic of a node: what it says of itself, and what each tile really computes."""
