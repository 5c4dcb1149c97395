"""Tenants, API tokens, scopes."""
