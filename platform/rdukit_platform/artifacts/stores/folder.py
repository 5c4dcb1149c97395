"""Store in one folder, which all nodes of a platform mount.

``blobs/ab/abcdef…`` holds the bytes whose SHA-256 is the name, read-only. ``holds`` has a locked file for each active
block of ``holding``, with its begin.
"""

import fcntl
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from io import BytesIO
from pathlib import Path
from typing import BinaryIO, Final

from rdukit.errors import Conflict, NotFound
from rdukit.files.atomic import remove_tree, write_atomic
from rdukit_platform.artifacts.store import BLOCK, BlobStore, PendingContent, StoredBlob, check_digest
from rdukit_platform.artifacts.stores.folder_pending import (
    PendingBlob,
    PendingBlobs,
    place_blobs,
    sync_blobs,
    sync_places,
)

_LOCK: Final = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
_DESCRIPTION: Final = "upload.json"


class FolderStore(BlobStore):
    """A content-addressed store in one folder. Safe for several processes."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self._pieces = FolderPieces(folder / "uploads")
        self._lock = f"{folder}/lock"

    @property
    def where(self) -> str:
        """``BlobStore.where``."""
        return str(self.folder)

    @property
    def pieces(self) -> "FolderPieces":
        """``BlobStore.pieces``."""
        return self._pieces

    def path(self, digest: str) -> Path:
        """Return the path of a blob, whether or not it exists."""
        return self.folder / "blobs" / check_digest(digest)[:2] / digest

    def read_range(self, digest: str, start: int, length: int) -> Iterator[bytes]:
        """``BlobStore.read_range``."""
        with self._open_file(digest) as stream:
            stream.seek(start)
            while length > 0 and (block := stream.read(min(BLOCK, length))):
                length -= len(block)
                yield block

    def state(self, digest: str) -> tuple[object, ...]:
        """``BlobStore.state``: from the file's metadata."""
        found = self._stat(digest)
        return found.st_ino, found.st_size, found.st_mtime_ns

    def size(self, digest: str) -> int:
        """``BlobStore.size``."""
        return self._stat(digest).st_size

    def has(self, digest: str) -> bool:
        """``BlobStore.has``."""
        return self.path(digest).is_file()

    @contextmanager
    def local(self, digest: str) -> Iterator[Path]:
        """``BlobStore.local``: the blob itself."""
        self._stat(digest)
        yield self.path(digest)

    def begin(self) -> PendingBlobs:
        """``BlobStore.begin``."""
        return PendingBlobs(str(self.folder), self._keep)

    def keep(self, added: PendingContent) -> None:
        """``BlobStore.keep``: one sync for all content, and then one for the names."""
        assert isinstance(added, PendingBlobs)
        self._keep(added.blobs)
        added.drop()

    @contextmanager
    def holding(self) -> Iterator[None]:
        """``BlobStore.holding``: a new file is locked."""
        holds = self.folder / "holds"
        holds.mkdir(parents=True, exist_ok=True)
        descriptor, path = _make_hold(holds)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)
            os.close(descriptor)

    def held_since(self) -> float | None:
        """``BlobStore.held_since``."""
        holds = self.folder / "holds"
        began = []
        for path in list(holds.iterdir()) if holds.is_dir() else []:
            with suppress(FileNotFoundError):
                descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    path.unlink(missing_ok=True)
                except BlockingIOError:
                    began.append(os.fstat(descriptor).st_mtime)
                finally:
                    os.close(descriptor)
        return min(began, default=None)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """``BlobStore.alone``."""
        self.folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.folder / "sweep.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
        except BlockingIOError as cause:
            raise Conflict("another collection or backup of content is running; try again when it has ended") from cause
        finally:
            os.close(descriptor)

    def blobs(self) -> Iterator[StoredBlob]:
        """``BlobStore.blobs``."""
        top = self.folder / "blobs"
        for folder in sorted(top.iterdir()) if top.is_dir() else []:
            for path in sorted(folder.iterdir()):
                with suppress(FileNotFoundError):
                    found = path.stat()
                    yield StoredBlob(path.name, str(path), found.st_size, found.st_mtime)

    def discard(self, blob: StoredBlob, before: float) -> bool:
        """``BlobStore.discard``."""
        path = Path(blob.place)
        with self._changing(is_alone=True), suppress(FileNotFoundError):
            if path.stat().st_mtime >= before:
                return False  # it was added again just now
            path.unlink()
            return True
        return False

    def clear_incoming(self, before: float, on_step: Callable[[str], None]) -> None:
        """``BlobStore.clear_incoming``."""
        incoming = self.folder / "incoming"
        for path in sorted(incoming.iterdir()) if incoming.is_dir() else []:
            with suppress(FileNotFoundError):
                if path.stat().st_mtime < before:
                    on_step(path.name)
                    path.unlink()

    def _keep(self, blobs: Sequence[PendingBlob]) -> None:
        if blobs:
            sync_blobs(blobs)
            with self._changing():
                place_blobs(blobs, str(self.folder))
            sync_places(blobs)

    @contextmanager
    def _changing(self, *, is_alone: bool = False) -> Iterator[None]:
        """Hold the lock of the blobs' names: shared for additions, exclusive for removals."""
        try:
            descriptor = os.open(self._lock, _LOCK, 0o600)
        except FileNotFoundError:
            self.folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self._lock, _LOCK, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX if is_alone else fcntl.LOCK_SH)
            yield
        finally:
            os.close(descriptor)

    def _stat(self, digest: str) -> os.stat_result:
        try:
            return self.path(digest).stat()
        except FileNotFoundError as cause:
            raise NotFound(f"the store has no content {digest}") from cause

    def _open_file(self, digest: str) -> BinaryIO:
        try:
            return self.path(digest).open("rb")
        except FileNotFoundError as cause:
            raise NotFound(f"the store has no content {digest}") from cause

    def _open(self, digest: str) -> Iterator[bytes]:
        with self._open_file(digest) as stream:
            while block := stream.read(BLOCK):
                yield block


class FolderPieces:
    """Uploads as folders: ``upload.json``, and a part named by number for each file that has begun."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def ids(self) -> Iterator[str]:
        """``PiecePlace.ids``."""
        for folder in sorted(self._folder.iterdir()) if self._folder.is_dir() else []:
            yield folder.name

    def describe(self, id: str, data: bytes) -> None:
        """``PiecePlace.describe``."""
        write_atomic(self._folder / id / _DESCRIPTION, data, 0o600)

    def description(self, id: str) -> bytes | None:
        """``PiecePlace.description``."""
        try:
            return (self._folder / id / _DESCRIPTION).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def size(self, id: str, number: int) -> int:
        """``PiecePlace.size``."""
        try:
            return self._part(id, number).stat().st_size
        except FileNotFoundError:
            return 0

    def append(self, id: str, number: int, offset: int, piece: bytes, check: Callable[[int], None]) -> int:
        """``PiecePlace.append``."""
        descriptor = os.open(self._part(id, number), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "r+b") as part:
            fcntl.flock(part, fcntl.LOCK_EX)
            size = part.seek(0, os.SEEK_END)
            check(size)
            part.write(piece)
            return size + len(piece)

    @contextmanager
    def open(self, id: str, number: int) -> Iterator[BinaryIO]:
        """``PiecePlace.open``."""
        part = self._part(id, number)
        with part.open("rb") if part.is_file() else BytesIO() as stream:  # an empty file gets no piece
            yield stream

    def drop(self, id: str, numbers: Iterable[int]) -> None:
        """``PiecePlace.drop``."""
        for number in numbers:
            self._part(id, number).unlink(missing_ok=True)

    def remove(self, id: str) -> None:
        """``PiecePlace.remove``."""
        remove_tree(self._folder / id)

    def written_at(self, id: str) -> float:
        """``PiecePlace.written_at``; 0: it is not a folder."""
        folder = self._folder / id
        times = [path.stat().st_mtime for path in (folder, *folder.iterdir())] if folder.is_dir() else [0.0]
        return max(times)

    def _part(self, id: str, number: int) -> Path:
        return self._folder / id / str(number)


def _make_hold(holds: Path) -> tuple[int, Path]:
    while True:
        path = holds / f"{os.getpid()}-{os.urandom(8).hex()}"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        # A collector may have removed the file before it was locked.
        if os.fstat(descriptor).st_nlink:
            return descriptor, path
        os.close(descriptor)
