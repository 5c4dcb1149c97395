"""Install the node as services, and remove it."""
