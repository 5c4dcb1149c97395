"""Training: options and schedule and reasons to stop are pure; the journal and the run are what does."""
