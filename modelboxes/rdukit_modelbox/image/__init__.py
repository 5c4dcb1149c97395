"""Container images of ModelBoxes: written as an OCI layout by ourselves, or built by an engine."""
