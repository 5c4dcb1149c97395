"""Webhooks: notifications about tenants' jobs, and their delivery."""
