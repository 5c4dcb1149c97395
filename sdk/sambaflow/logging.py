"""``samba_logger``, for programs' own messages. Source: SDK reference 14.4."""

import logging
from collections import Counter
from typing import Any


class SambaLogger:
    """A logger whose messages can be limited: ``log_limit=1`` logs equal messages once."""

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)
        self._seen: Counter[tuple[int, str]] = Counter()

    def debug(self, message: object, *args: Any, log_limit: int | None = None) -> None:
        self._log(logging.DEBUG, message, args, log_limit)

    def info(self, message: object, *args: Any, log_limit: int | None = None) -> None:
        self._log(logging.INFO, message, args, log_limit)

    def warning(self, message: object, *args: Any, log_limit: int | None = None) -> None:
        self._log(logging.WARNING, message, args, log_limit)

    def error(self, message: object, *args: Any, log_limit: int | None = None) -> None:
        self._log(logging.ERROR, message, args, log_limit)

    def _log(self, level: int, message: object, args: tuple[Any, ...], limit: int | None) -> None:
        key = (level, str(message))
        self._seen[key] += 1
        if limit is None or self._seen[key] <= limit:
            self._logger.log(level, str(message), *args, stacklevel=3)


samba_logger = SambaLogger("samba")

__all__ = ["SambaLogger", "samba_logger"]
