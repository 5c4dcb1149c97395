"""Downloads of a source to a file: resumed where a connection was cut, bounded in size."""

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
    """The connection was cut, or the server asks to come again: trying once more may help."""


@dataclass(frozen=True, slots=True)
class Opened:
    """An answer under way: bytes from ``start`` on."""

    #: 0 when the server begins anew although asked for a later part.
    start: int
    #: Bytes of the whole, if told.
    size: int | None
    #: What the server calls this content: an ETag or a date.
    validator: str | None
    blocks: Iterator[bytes]


class ByteSource(Protocol):
    """A remote file."""

    def open(self, start: int, validator: str | None) -> Opened:
        """Ask for the bytes from ``start`` on, if the content is still what ``validator`` names.

        Raises:
            Interrupted: worth another try; also while the blocks are read.
            RdukitError: it is not there, not allowed, or not legal.
        """
        ...

    def find_validator(self) -> str | None:
        """Return the server's name for the content now; None if it gives none. Never raises for a cut connection."""
        ...


#: Seconds before the second connection; doubled for each further one that brought nothing, up to the last.
FIRST_PAUSE_S: Final = 0.2
LAST_PAUSE_S: Final = 5.0
#: Bytes of the disk that a fetch leaves free.
KEPT_FREE: Final = 64 << 20

#: Bytes there and bytes in all (0: not known); may raise ``Cancelled``.
Watch = Callable[[int, int], None]


def download(
    source: ByteSource, uri: str, path: Path, max_bytes: int, attempts: int, clock: Clock, watch: Watch
) -> str | None:
    """Bring the whole of ``source`` to ``path``, which may hold the beginning from an earlier try.

    Returns:
        What the server calls the content, if it says.
    Raises:
        InvalidArgument: more than ``max_bytes``.
        NoResources: the disk has not so much left.
        Unavailable: ``attempts`` connections in a row brought nothing.
        NotFound, PermissionDenied: by the server.
    """
    beside = path.with_name(path.name + ".json")
    pause, failures, most = FIRST_PAUSE_S, 0, 0
    while True:
        there = path.stat().st_size if path.exists() else 0
        validator = _kept_validator(beside)
        if there and validator is None:
            # Nothing says that the rest would belong to what is here.
            path.unlink()
            there = 0
        try:
            opened = source.open(there, validator)
            write_json_atomic(beside, {"uri": uri, "validator": opened.validator})
            _take(opened, uri, path, max_bytes, watch)
        except TransferInterrupted as cut:
            now = path.stat().st_size if path.exists() else 0
            # More than ever before, or a server that begins anew each time would never be given up.
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
            raise NoResources(f"{uri} has {size} bytes; {free} are free under {path.parent}")
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
        raise InvalidArgument(f"{uri} has at least {size} bytes; legal: up to {max_bytes} (artifacts.max_bytes)")


def _kept_validator(beside: Path) -> str | None:
    try:
        value = json.loads(beside.read_bytes())["validator"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return value if isinstance(value, str) else None
