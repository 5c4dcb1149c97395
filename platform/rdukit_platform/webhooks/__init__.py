"""Webhooks: what tenants are told of their jobs, and its delivery."""
