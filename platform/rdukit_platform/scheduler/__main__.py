"""``python -m rdukit_platform.scheduler``: the scheduler process."""

import os

from rdukit.system.process import configure_logging
from rdukit.telemetry.spans import configure_telemetry
from rdukit_platform.scheduler.loop import serve
from rdukit_platform.settings import checked_home


def main() -> None:
    """Schedule until SIGTERM."""
    configure_logging()
    configure_telemetry("scheduler")
    os.umask(0o077)
    serve(checked_home())


if __name__ == "__main__":
    main()
