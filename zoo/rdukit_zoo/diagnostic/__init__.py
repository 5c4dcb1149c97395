"""Program by which snfadm diag tries a node's tiles: python -m rdukit_zoo.diagnostic."""
