"""Log lines as JSON, one object a line, with the ids of their job, attempt, tenant, request and trace."""

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Final

from rdukit.telemetry.spans import current_context, service_name

#: Ids of the current work. The tasks and threads of one request share the dict.
_ids: ContextVar[dict[str, str] | None] = ContextVar("log_ids", default=None)
#: First parts of the names of rdukit's loggers.
_OURS: Final = ("rdukit", "sambaflow")


@contextmanager
def log_ids(**ids: str) -> Iterator[None]:
    """Add ids to the log lines of the block, in addition to those set already."""
    token = _ids.set({**(_ids.get() or {}), **ids})
    try:
        yield
    finally:
        _ids.reset(token)


class RankRecords:
    """Factory of log records: rdukit's messages begin with the rank of this process in its launch."""

    def __init__(self, rank: int, make: Callable[..., logging.LogRecord]) -> None:
        self._rank, self._make = rank, make

    def __call__(self, *args: object, **kwargs: object) -> logging.LogRecord:
        """Return a record."""
        record = self._make(*args, **kwargs)
        if record.name.partition(".")[0].startswith(_OURS):
            record.msg = f"rank {self._rank}: {record.msg}"
        return record


def begin_logs_with_rank(rank: int) -> None:
    """Let rdukit's messages of this process begin with its rank; the first call counts."""
    make = logging.getLogRecordFactory()
    if not isinstance(make, RankRecords):
        logging.setLogRecordFactory(RankRecords(rank, make))


class JsonLines(logging.Formatter):
    """Formatter of ``log.format`` json."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line."""
        fields: dict[str, object] = {
            "ts": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            "service": service_name(),
            "pid": record.process,
            **(_ids.get() or {}),
        }
        if (context := current_context()) is not None:
            fields |= {"trace_id": context.trace_id, "span_id": context.span_id}
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=False, default=str)
