"""What a ModelBox and whoever starts or calls it agree on: its API's client, its events, its image."""
