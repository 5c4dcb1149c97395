"""JSON schemas and regular expressions as people's tools write them, in the terms that llguidance keeps."""
