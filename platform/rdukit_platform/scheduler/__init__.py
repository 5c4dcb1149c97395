"""Scheduler: chooses which job runs next, and recovers what got stuck."""
