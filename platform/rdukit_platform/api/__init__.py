"""Routes of the REST API, and what they share with the console: the open platform, callers, audit entries."""
