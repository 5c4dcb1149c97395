"""``sambatune_ui``: pages of the runs of ``sambatune`` below an artifact root: list, report, comparison."""
