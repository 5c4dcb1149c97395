"""Nodes: how they are, which there are, and what is asked of them."""
