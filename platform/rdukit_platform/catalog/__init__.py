"""Catalog: ModelBoxes, experts and models that jobs may use, and checks of parameters."""
