"""Container images of ModelBoxes: written as an OCI layout, or built by an engine."""
