"""Program with which snfadm diag tests a node's tiles: python -m rdukit_zoo.diagnostic."""
