"""The contract between a ModelBox and its callers: the client of its API, its events, its image."""
