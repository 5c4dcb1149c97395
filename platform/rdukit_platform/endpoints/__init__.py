"""Endpoints: models of a tenant that run behind the gateway."""
