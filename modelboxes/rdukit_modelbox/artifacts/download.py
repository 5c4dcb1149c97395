"""Downloads of a source to a file: resumed after a broken connection, bounded in size."""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from rdukit.errors import InvalidArgument, NoResources, Unavailable
from rdukit.files.atomic import write_json_atomic
from rdukit.interfaces import Clock


class TransferInterrupted(Exception):
    """The connection was cut, or the server asks for a retry: another attempt may help."""


@dataclass(frozen=True, slots=True)
class Opened:
    """An answer under way: bytes from ``start`` on."""

    #: 0 if the server starts from the beginning although a later part was requested.
    start: int
    #: Total bytes, if the server sends them.
    size: int | None
    #: The server's name for this content: an ETag or a date.
    validator: str | None
    blocks: Iterator[bytes]


class ByteSource(Protocol):
    """A remote file."""

    def open(self, start: int, validator: str | None) -> Opened:
        """Request the bytes from ``start`` on, if the content is still the one of ``validator``.

        Raises:
            Interrupted: a retry may help; also raised while the blocks are read.
            RdukitError: the source is missing, not allowed, or not valid.
        """
        ...

    def find_validator(self) -> str | None:
        """Return the server's identifier of the current content; None if it sends none. Never raises for a cut
        connection.
        """
        ...


#: Pause in seconds before the second connection; doubled after each connection without progress, up to a limit.
FIRST_PAUSE_S: Final = 0.2
LAST_PAUSE_S: Final = 5.0
#: Free bytes of the disk that a fetch must leave.
KEPT_FREE: Final = 64 << 20

#: Bytes there and bytes in all (0: not known); may raise ``Cancelled``.
Watch = Callable[[int, int], None]


def download(
    source: ByteSource, uri: str, path: Path, max_bytes: int, attempts: int, clock: Clock, watch: Watch
) -> str | None:
    """Download ``source`` to ``path``, which may already have the beginning.

    Returns:
        The server's name of the content, if it has one.
    Raises:
        InvalidArgument: more than ``max_bytes``.
        NoResources: the disk is too full. Unavailable: ``attempts`` successive connections made no progress.
        NotFound, PermissionDenied: by the server.
    """
    beside = path.with_name(path.name + ".json")
    pause, failures, most = FIRST_PAUSE_S, 0, 0
    while True:
        there = path.stat().st_size if path.exists() else 0
        validator = _kept_validator(beside)
        if there and validator is None:
            # The rest may not match the bytes that are here.
            path.unlink()
            there = 0
        try:
            opened = source.open(there, validator)
            write_json_atomic(beside, {"uri": uri, "validator": opened.validator})
            _take(opened, uri, path, max_bytes, watch)
        except TransferInterrupted as cut:
            now = path.stat().st_size if path.exists() else 0
            # Only new maxima count: a server that restarts every transfer is eventually given up.
            grown = now > max(most, there)
            most, failures = max(most, now), 1 if grown else failures + 1
            if failures >= attempts:
                raise Unavailable(f"{uri} was cut off {failures} times in a row: {cut}; try again later") from cut
            watch(now, 0)
            clock.sleep(FIRST_PAUSE_S if grown else pause)
            pause = FIRST_PAUSE_S if grown else min(pause * 2, LAST_PAUSE_S)
            continue
        beside.unlink(missing_ok=True)
        return opened.validator


def _take(opened: Opened, uri: str, path: Path, max_bytes: int, watch: Watch) -> None:
    size = opened.size
    if size is not None:
        _check_size(uri, size, max_bytes)
        free = shutil.disk_usage(path.parent).free
        if size - opened.start > free - KEPT_FREE:
            raise NoResources(f"{uri} has {size} bytes, but {path.parent} has only {free} free")
    with path.open("r+b" if opened.start else "wb") as stream:
        there = opened.start
        stream.seek(there)
        stream.truncate()
        for block in opened.blocks:
            there += len(block)
            _check_size(uri, there, max_bytes)
            stream.write(block)
            watch(there, size or 0)
        stream.flush()
        os.fsync(stream.fileno())


def _check_size(uri: str, size: int, max_bytes: int) -> None:
    if size > max_bytes:
        raise InvalidArgument(f"{uri} has at least {size} bytes; expected up to {max_bytes} (artifacts.max_bytes)")


def _kept_validator(beside: Path) -> str | None:
    try:
        value = json.loads(beside.read_bytes())["validator"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return value if isinstance(value, str) else None
