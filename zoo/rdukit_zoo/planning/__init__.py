"""Compiles of sizes that exceed the machine's memory: parameters have no values, and the PEF is a plan."""
