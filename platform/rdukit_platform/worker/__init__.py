"""Runs one attempt of a job in a ModelBox process; Celery only carries the call."""
