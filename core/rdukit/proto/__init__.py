"""Wire definitions and the Python code generated from them by ``make proto`` (a test compares them)."""
