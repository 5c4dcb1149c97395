"""Worker: runs attempts of jobs in ModelBoxes. Celery only carries the messages."""
