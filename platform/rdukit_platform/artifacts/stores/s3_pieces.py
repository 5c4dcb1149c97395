"""Pieces of uploads as objects: ``uploads/ID/upload.json``, and ``uploads/ID/NUMBER/OFFSET`` per piece.

Pieces are written atomically, so a kill at any time keeps the earlier ones. Only the chain of pieces from offset 0
counts: of two concurrent senders one wins, and pieces off the chain are sent again.
"""

import io
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import BinaryIO, Final, cast

from rdukit.errors import NotFound
from rdukit_platform.artifacts.stores.bucket import Bucket, ObjectEntry

_DESCRIPTION: Final = "upload.json"


class S3Pieces:
    """Uploads below a bucket's prefix. Safe for concurrent processes."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    def ids(self) -> Iterator[str]:
        """``PiecePlace.ids``."""
        yield from sorted({entry.key.split("/")[1] for entry in self._bucket.list("uploads/")})

    def describe(self, id: str, data: bytes) -> None:
        """``PiecePlace.describe``."""
        self._bucket.put(f"uploads/{id}/{_DESCRIPTION}", data)

    def description(self, id: str) -> bytes | None:
        """``PiecePlace.description``."""
        try:
            return b"".join(self._bucket.read(f"uploads/{id}/{_DESCRIPTION}"))
        except NotFound:
            return None

    def size(self, id: str, number: int) -> int:
        """``PiecePlace.size``."""
        return sum(entry.bytes for entry in self._chain(id, number))

    def append(self, id: str, number: int, offset: int, piece: bytes, check: Callable[[int], None]) -> int:
        """``PiecePlace.append``."""
        size = self.size(id, number)
        check(size)
        if piece:
            self._bucket.put(f"{_part(id, number)}{size:020d}", piece)
        return size + len(piece)

    @contextmanager
    def open(self, id: str, number: int) -> Iterator[BinaryIO]:
        """``PiecePlace.open``."""
        keys = [entry.key for entry in self._chain(id, number)]
        blocks = (block for key in keys for block in self._bucket.read(key))
        yield cast(BinaryIO, _Blocks(blocks))

    def drop(self, id: str, numbers: Iterable[int]) -> None:
        """``PiecePlace.drop``."""
        self._bucket.delete([entry.key for number in numbers for entry in self._bucket.list(_part(id, number))])

    def remove(self, id: str) -> None:
        """``PiecePlace.remove``."""
        self._bucket.delete([entry.key for entry in self._bucket.list(f"uploads/{id}/")])

    def written_at(self, id: str) -> float:
        """``PiecePlace.written_at``; 0: there are no pieces."""
        times = [entry.written_at for entry in self._bucket.list(f"uploads/{id}/")]
        return max(times, default=0.0) - self._bucket.clock_offset_s

    def _chain(self, id: str, number: int) -> Iterator[ObjectEntry]:
        end = 0
        for entry in self._bucket.list(_part(id, number)):
            if entry.key.rpartition("/")[2] == f"{end:020d}":
                end += entry.bytes
                yield entry


class _Blocks(io.RawIOBase):
    """Blocks as a stream to read."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks, self._rest = blocks, b""

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        while size < 0 or len(self._rest) < size:
            block = next(self._blocks, b"")
            if not block:
                break
            self._rest += block
        taken = self._rest if size < 0 else self._rest[:size]
        self._rest = self._rest[len(taken) :]
        return taken


def _part(id: str, number: int) -> str:
    return f"uploads/{id}/{number}/"
