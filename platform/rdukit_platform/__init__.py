"""The job platform: gateway, scheduler, workers, catalog, tenants, artifacts, console."""
