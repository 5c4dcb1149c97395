"""Files and folders: atomic writes, locks, the home folder, a cache on disk."""
