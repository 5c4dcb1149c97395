"""Where bytes come from, for the downloader: one shape for all schemes."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol


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
    """One remote file."""

    def open(self, start: int, validator: str | None) -> Opened:
        """Ask for the bytes from ``start`` on, if the content is still what ``validator`` names.

        Raises:
            Interrupted: worth another try; also while the blocks are read.
            RdukitError: it is not there, not allowed, or not legal.
        """
        ...

    def find_validator(self) -> str | None:
        """What the server calls the content now; None if it does not say. Never raises for a cut connection."""
        ...
