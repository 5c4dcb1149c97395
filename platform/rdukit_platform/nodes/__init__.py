"""Nodes: their state, their registry, and orders to them."""
