"""Audit log: an append-only record of acts and refusals."""
