"""Schedules: pipelines that are submitted at the times of a cron expression."""
