"""Logging set-up: one event a line, ids as key=value."""

import logging
import sys
from pathlib import Path

from rdukit.home import make_folder
from rdukit.settings import LOG_LEVEL, resolve

LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
FORMAT = "%(asctime)s %(levelname)s %(name)s %(message)s"


def configure_logging(level: str | None = None, file: Path | None = None) -> None:
    """Send rdukit's log to stderr, and to ``file`` as well if given. Calling again replaces the former set-up."""
    root = logging.getLogger()
    for handler in [h for h in root.handlers if getattr(h, "_rdukit", False)]:
        root.removeHandler(handler)
        handler.close()
    handlers: list[logging.Handler] = [logging.StreamHandler(sys.stderr)]
    if file is not None:
        make_folder(file.parent)
        handlers.append(logging.FileHandler(file))
    for handler in handlers:
        handler.setFormatter(logging.Formatter(FORMAT))
        handler._rdukit = True  # type: ignore[attr-defined]
        root.addHandler(handler)
    root.setLevel(resolve(LOG_LEVEL, level).upper())
    # It has a line for each request: four a second while a worker waits for a pod.
    logging.getLogger("httpx").setLevel(logging.NOTSET if root.level <= logging.DEBUG else logging.WARNING)
