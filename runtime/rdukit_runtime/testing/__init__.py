"""Programs and PEFs for tests."""
