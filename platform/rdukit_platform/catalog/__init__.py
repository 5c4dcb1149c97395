"""The ModelBoxes that jobs may name, and what their parameters may be."""
