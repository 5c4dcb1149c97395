"""The grammar of ``sn.log`` and ``snd.log``: one line an event. Pure.

``2024-03-05T10:41:09 : [INFO][LIB][41207]: sn_create_session: PEF File: mlp.pef``

Source: runtime reference 2.1 (grammar, levels and their order, the "Log ID" line); escapes are ours.
"""

import re
from collections.abc import Mapping
from datetime import datetime
from enum import IntEnum
from pathlib import Path
from typing import Final, NamedTuple

from rdukit.errors import InvalidArgument

#: The vendor's variable for the level of ``sn.log``.
LOG_LEVEL_VARIABLE: Final = "SF_RNT_LOG_LEVEL"
#: Module names in the lines of applications and of the daemon.
LIBRARY: Final = "LIB"
DAEMON: Final = "SND"
#: Longest text of a line, in characters.
MAX_TEXT: Final = 16_384


class LogLevel(IntEnum):
    """Levels, more severe ones higher; a chosen level includes all higher ones."""

    DEBUG = 0
    INFO = 1
    NOTICE = 2
    WARNING = 3
    ERR = 4
    CRIT = 5
    ALERT = 6
    EMERG = 7


_ALIASES: Final = {"WARN": LogLevel.WARNING, "ERROR": LogLevel.ERR, "CRITICAL": LogLevel.CRIT}
#: A pattern is compiled when it is first used: programs that only write lines pay nothing for it at their start.
_LINE: Final = r"(\S+) : \[([A-Z]+)\]\[([^\]]*)\]\[(\d+)\]: (.*?): (.*)"
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


class LogLine(NamedTuple):
    """An event. ``time``: local, to the second, as ``YYYY-MM-DDThh:mm:ss``."""

    time: str
    level: LogLevel
    module: str
    pid: int
    function: str
    text: str

    def __str__(self) -> str:
        head = f"{self.time} : [{self.level.name}][{self.module}][{self.pid}]: "
        return f"{head}{_one_line(self.function)}: {_one_line(self.text[:MAX_TEXT])}"


def parse_line(line: str) -> LogLine | None:
    """Return the event of a line; ``None``: the line is not of the grammar. Escapes are not decoded."""
    found = re.fullmatch(_LINE, line.rstrip("\n"), re.DOTALL)
    if found is None or found[2] not in LogLevel.__members__:
        return None
    return LogLine(found[1], LogLevel[found[2]], found[3], int(found[4]), found[5], found[6])


def time_text(seconds: float) -> str:
    """Return a time since the epoch as in a line."""
    return datetime.fromtimestamp(seconds).isoformat(timespec="seconds")


def level_named(text: str) -> LogLevel:
    """Return the level called ``text``, in any case.

    Raises:
        InvalidArgument: the level is unknown; the message lists the known ones.
    """
    word = text.strip().upper()
    if word in _ALIASES:
        return _ALIASES[word]
    if word not in LogLevel.__members__:
        raise InvalidArgument(f"unknown log level {text!r}; expected {', '.join(LogLevel.__members__)}")
    return LogLevel[word]


def application_level(environ: Mapping[str, str]) -> LogLevel:
    """Return the level of ``$SF_RNT_LOG_LEVEL``; NOTICE if it is not set.

    Raises:
        InvalidArgument: it names no level.
    """
    text = environ.get(LOG_LEVEL_VARIABLE, "")
    try:
        return level_named(text) if text.strip() else LogLevel.NOTICE
    except InvalidArgument as cause:
        raise InvalidArgument(f"${LOG_LEVEL_VARIABLE}: {cause.message}") from cause


def log_id_line(user: str, program: str, pid: int, path: Path) -> str:
    """Format the line that ties a job's output to its lines in the shared log: printed to the user's terminal."""
    return f"Log ID initialized to: [{_one_line(user)}][{_one_line(program)}][{pid}] at {path}"


def _one_line(text: str) -> str:
    if text.isprintable():
        return text
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
