"""Install the node as services, and take it away again."""
