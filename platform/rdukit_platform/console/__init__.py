"""The web console: pages rendered on the server, kept fresh by htmx; no build step, nothing loaded from elsewhere."""
