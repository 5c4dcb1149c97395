"""Copies of a bucket's content in a machine's home folder, a bounded number of bytes, the longest unused going first.

``ab/abcdef…`` is whole and had its digest when it was fetched; ``partial`` has what is being fetched, or was when its
process was killed: the next fetch goes on with it. Whoever reads a copy compares it with its digest again.
"""

import fcntl
import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from rdukit_platform.artifacts.store import BLOCK, check_digest, damaged

Fetch = Callable[[int], Iterator[bytes]]
#: Times that a copy is fetched anew which others made room with before it was opened.
TRIES: Final = 3


class ContentCache:
    """Copies of content in one folder. Safe for several processes."""

    def __init__(self, folder: Path, max_bytes: int) -> None:
        """Name the folder; copies are together at most ``max_bytes``, but for those that are being fetched."""
        self.folder, self._most = folder, max_bytes

    def fits(self, size: int) -> bool:
        """Return whether content of so many bytes is copied at all."""
        return size <= self._most

    def find(self, digest: str) -> Path | None:
        """Return the copy of a blob, which counts as used; ``None``: there is none."""
        path = self._path(digest)
        try:
            os.utime(path)
        except FileNotFoundError:
            return None
        return path

    def bring(self, digest: str, size: int, fetch: Fetch) -> Path:
        """Return the copy of a blob; if there is none it is fetched, by one process for all who ask.

        Args:
            fetch: yields the blob's bytes from an offset on.
        Raises:
            ContentDamaged: what was fetched has not the digest; nothing of it is kept.
        """
        if (found := self.find(digest)) is not None:
            return found
        partial = self.folder / "partial" / digest
        partial.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _locked(partial) as descriptor:
            if (found := self.find(digest)) is not None:
                partial.unlink(missing_ok=True)
                return found
            self._make_room(size)
            read = _resume(descriptor, size)
            had = os.lseek(descriptor, 0, os.SEEK_CUR)
            for block in fetch(had) if had < size else ():
                read.update(block)
                _write(descriptor, block)
            if read.hexdigest() != digest:
                partial.unlink(missing_ok=True)
                raise damaged(digest, read.hexdigest())
            path = self._path(digest)
            path.parent.mkdir(mode=0o700, exist_ok=True)
            os.fchmod(descriptor, 0o400)
            partial.replace(path)
        return path

    @contextmanager
    def once(self, blocks: Iterator[bytes]) -> Iterator[Path]:
        """Yield a file with what is too large for a copy, for as long as the block goes on."""
        path = self.folder / "partial" / os.urandom(8).hex()
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            with _locked(path) as descriptor:
                for block in blocks:
                    _write(descriptor, block)
                yield path
        finally:
            path.unlink(missing_ok=True)

    def forget(self, digest: str) -> None:
        """Remove a copy that turned out wrong."""
        self._path(digest).unlink(missing_ok=True)

    def clear(self) -> None:
        """Remove all copies: the disk has no room for them."""
        for _, path in self._copies():
            path.unlink(missing_ok=True)

    def bytes(self) -> int:
        """Return how many bytes the copies have."""
        total = 0
        for _, path in self._copies():
            with suppress(FileNotFoundError):
                total += path.stat().st_size
        return total

    def _make_room(self, size: int) -> None:
        copies = list[tuple[float, Path, int]]()
        for used_at, path in self._copies():
            with suppress(FileNotFoundError):
                copies.append((used_at, path, path.stat().st_size))
        total = size + sum(each for _, _, each in copies)
        for _, path, each in sorted(copies):
            if total <= self._most:
                return
            path.unlink(missing_ok=True)
            total -= each

    def _copies(self) -> Iterator[tuple[float, Path]]:
        """Yield what there is with the time of its last use, but for what is being fetched."""
        for path in self.folder.glob("*/*"):
            with suppress(FileNotFoundError):
                if path.parent.name != "partial" or not _is_locked(path):
                    yield path.stat().st_mtime, path

    def _path(self, digest: str) -> Path:
        return self.folder / check_digest(digest)[:2] / digest


@contextmanager
def _locked(path: Path) -> Iterator[int]:
    """Open a file and lock it; whoever had it before may have given it another name, or removed it."""
    descriptor = -1
    try:
        while descriptor < 0 or not _is_at(path, descriptor):
            if descriptor >= 0:
                os.close(descriptor)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return path.stat().st_ino == os.fstat(descriptor).st_ino
    except FileNotFoundError:
        return False


def _is_locked(path: Path) -> bool:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)


def _resume(descriptor: int, size: int) -> "hashlib._Hash":
    """Hash what there is of a file and stand at its end; of more than there can be nothing is taken."""
    found = hashlib.sha256()
    if os.fstat(descriptor).st_size > size:
        os.ftruncate(descriptor, 0)
    while block := os.read(descriptor, BLOCK):
        found.update(block)
    return found


def _write(descriptor: int, block: bytes) -> None:
    view = memoryview(block)
    while view:
        view = view[os.write(descriptor, view) :]
