"""Training: options, schedule and reasons to stop are pure; the journal and the run have the effects."""
