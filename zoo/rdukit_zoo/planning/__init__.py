"""Compiles of sizes that no machine at hand holds: parameters have no values, the PEF is a plan."""
