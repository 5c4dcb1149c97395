"""Checkpoints as Hugging Face folders hold them, read into models of the zoo and written from them."""
