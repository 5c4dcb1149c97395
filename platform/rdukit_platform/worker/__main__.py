"""``python -m rdukit_platform.worker``: the worker process."""

from rdukit.cli import exit_on_error
from rdukit.system.process import configure_logging
from rdukit.telemetry.spans import configure_telemetry
from rdukit_platform.settings import checked_home
from rdukit_platform.worker.serve import serve


def main() -> None:
    """Run attempts until SIGTERM."""
    configure_logging()
    # No umask: boxes may run as another user and must read their files, which lie in folders closed to others.
    with exit_on_error():
        configure_telemetry("worker")
        serve(checked_home())


if __name__ == "__main__":
    main()
