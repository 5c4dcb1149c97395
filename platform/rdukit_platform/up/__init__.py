"""``rdukit up``: all parts of the platform as child processes on this machine."""
