"""Back-up of a whole platform, and its restore: ``docs/backup.md``."""
