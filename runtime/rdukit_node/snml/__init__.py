"""SNML: the node's management interface over gRPC, for any language. ``docs/snml.md`` is its manual."""
