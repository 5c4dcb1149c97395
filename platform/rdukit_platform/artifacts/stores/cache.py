"""Cache of a bucket's content in a machine's home folder, of bounded size; the longest unused copies are evicted first.

``ab/abcdef…`` is complete and was verified when fetched. ``partial`` has unfinished fetches, which the next fetch
continues. Readers verify a copy again.
"""

import fcntl
import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from rdukit.files.atomic import write_whole
from rdukit_platform.artifacts.store import BLOCK, check_digest, damaged

Fetch = Callable[[int], Iterator[bytes]]
#: Attempts to fetch a copy that others evict before it is opened.
TRIES: Final = 3


class ContentCache:
    """Copies of content in one folder. Safe for several processes."""

    def __init__(self, folder: Path, max_bytes: int) -> None:
        """Use a folder; its complete copies have at most ``max_bytes`` together."""
        self.folder, self._most = folder, max_bytes

    def fits(self, size: int) -> bool:
        """Return whether content of this size is cached."""
        return size <= self._most

    def find(self, digest: str) -> Path | None:
        """Return the copy of a blob, and mark it as used; ``None``: there is no copy."""
        path = self._path(digest)
        try:
            os.utime(path)
        except FileNotFoundError:
            return None
        return path

    def bring(self, digest: str, size: int, fetch: Fetch) -> Path:
        """Return the copy of a blob. A missing one is fetched by one process for all callers.

        Args:
            fetch: yields the blob's bytes from an offset on.
        Raises:
            ContentDamaged: the fetched bytes have another digest; they are deleted.
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
                write_whole(descriptor, block)
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
        """Yield a temporary file with content too large for the cache, while the block lasts."""
        path = self.folder / "partial" / os.urandom(8).hex()
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            with _locked(path) as descriptor:
                for block in blocks:
                    write_whole(descriptor, block)
                yield path
        finally:
            path.unlink(missing_ok=True)

    def forget(self, digest: str) -> None:
        """Remove a damaged copy."""
        self._path(digest).unlink(missing_ok=True)

    def clear(self) -> None:
        """Remove all copies, because the disk is full."""
        for _, path in self._copies():
            path.unlink(missing_ok=True)

    def bytes(self) -> int:
        """Return the bytes of all copies."""
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
        """Yield the copies with the time of their last use, without those being fetched."""
        for path in self.folder.glob("*/*"):
            with suppress(FileNotFoundError):
                if path.parent.name != "partial" or not _is_locked(path):
                    yield path.stat().st_mtime, path

    def _path(self, digest: str) -> Path:
        return self.folder / check_digest(digest)[:2] / digest


@contextmanager
def _locked(path: Path) -> Iterator[int]:
    """Open and lock a file; retry if its former holder has renamed or removed it."""
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
    """Hash a partial file and seek to its end; a file that is too long is truncated."""
    found = hashlib.sha256()
    if os.fstat(descriptor).st_size > size:
        os.ftruncate(descriptor, 0)
    while block := os.read(descriptor, BLOCK):
        found.update(block)
    return found
