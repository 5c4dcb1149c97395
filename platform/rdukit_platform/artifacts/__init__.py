"""Content-addressed artifacts and their lineage."""
