"""Checkpoints in Hugging Face folders: read into models of the zoo, and written from them."""
