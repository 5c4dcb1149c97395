"""Audit log: an append-only record of actions and refusals."""
