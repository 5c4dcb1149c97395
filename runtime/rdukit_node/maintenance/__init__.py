"""Administrators' say over which parts of a node are allocated: cordons, drains, maintenance windows."""
