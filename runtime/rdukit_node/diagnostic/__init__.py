"""Active diagnostic of a node: its own report, and test computations on each tile."""
