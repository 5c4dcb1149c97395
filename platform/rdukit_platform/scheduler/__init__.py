"""Scheduler: chooses the next job, and recovers lost attempts and messages."""
