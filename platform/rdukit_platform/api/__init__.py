"""Routes of the REST API, and code that they share with the console: the open platform, callers, audit entries."""
