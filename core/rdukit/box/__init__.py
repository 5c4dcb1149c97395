"""The contract between a ModelBox and those who start or call it: its API's client, its events, its image."""
