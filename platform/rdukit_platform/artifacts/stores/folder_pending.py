"""Group commit of content into a folder store: files are synced to the disk together.

A blob is written to ``incoming``, without a wait. To keep a blob, its bytes are synced first, then it gets its name,
then the name is synced. So a file named by a digest has its bytes even after a power failure, and a blob's row is
written only when its name is durable. A new file replaces an existing blob, which may be damaged; also, the time of an
upload must not reveal that another tenant has the blob.

A disk may refuse bytes that it had accepted, and the kernel reports that only once. Such a blob is therefore not tried
again.
"""

import hashlib
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import BinaryIO, Final

from rdukit.files.atomic import write_whole
from rdukit.files.durable import sync_files, sync_folders
from rdukit_platform.artifacts.store import BLOCK, ContentDiffers, ContentLost, PendingContent, check_digest

#: Limits of files and bytes in one ``PendingBlobs``; beyond them it syncs at once, so that others need not wait.
MAX_FILES: Final = 8
MAX_BYTES: Final = 1 << 20
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_NUMBERS: Final = count()


@dataclass(slots=True, eq=False)
class PendingBlob:
    """A file in ``incoming`` on its way to its place. It stays open: fsync then reports all errors since the write."""

    descriptor: int
    temporary: str
    #: Order of creation: a blob with a smaller number was opened earlier.
    number: int = field(default_factory=lambda: next(_NUMBERS))
    digest: str = ""
    #: Folders with new names for it, once it is in its place.
    folders: tuple[str, ...] = ()
    #: Write error reported by the disk.
    error: OSError | None = None


class PendingBlobs(PendingContent):
    """Blobs that are kept together."""

    def __init__(self, folder: str, keep: Callable[[Sequence[PendingBlob]], None]) -> None:
        """
        Args: folder: the store's. keep: makes blobs durable.
        """
        self._incoming, self._keep = f"{folder}/incoming", keep
        #: Prefix of its files' paths.
        self._prefix = f"{self._incoming}/{os.getpid()}-{os.urandom(8).hex()}"
        self.blobs = list[PendingBlob]()
        self._opened = self._bytes = 0

    def drop(self) -> None:
        """``PendingContent.drop``."""
        while self.blobs:
            _close(self.blobs.pop())

    def _add(self, stream: BinaryIO, digest: str | None) -> tuple[str, int]:
        # The digest is known only at the end, so the bytes go to a temporary file first.
        blob, found, size = self._open(), hashlib.sha256(), 0
        try:
            while block := stream.read(BLOCK):
                found.update(block)
                write_whole(blob.descriptor, block)
                size += len(block)
            if digest is not None and found.hexdigest() != digest:
                raise ContentDiffers(found.hexdigest(), digest)
            blob.digest = found.hexdigest()
        finally:
            self._take(blob, size)
        return blob.digest, size

    def _publish(self, digest: str, data: bytes) -> None:
        blob = self._open()
        try:
            write_whole(blob.descriptor, data)
            blob.digest = check_digest(digest)
        finally:
            self._take(blob, len(data))

    def _open(self) -> PendingBlob:
        self._opened += 1
        temporary = f"{self._prefix}-{self._opened}"
        try:
            return PendingBlob(os.open(temporary, _NEW, 0o600), temporary)
        except FileNotFoundError:
            os.makedirs(self._incoming, exist_ok=True)
            return PendingBlob(os.open(temporary, _NEW, 0o600), temporary)

    def _take(self, blob: PendingBlob, size: int) -> None:
        """Queue a written blob, or discard an unwritten one."""
        if not blob.digest:
            _close(blob)
            return
        self.blobs.append(blob)
        os.fchmod(blob.descriptor, 0o444)
        self._bytes += size
        if len(self.blobs) >= MAX_FILES or self._bytes > MAX_BYTES:
            self._keep(self.blobs)
            self.drop()
            self._bytes = 0


def sync_blobs(blobs: Sequence[PendingBlob]) -> None:
    """Sync the bytes of blobs that have no place yet.

    Raises:
        OSError: the disk reports an error now.
        ContentLost: the disk reported an error earlier.
    """
    _check(blobs)
    waiting = sorted((blob for blob in blobs if not blob.folders), key=lambda blob: blob.number)
    for blob, error in zip(waiting, sync_files([blob.descriptor for blob in waiting]), strict=True):
        blob.error = error
    for blob in waiting:
        if blob.error is not None:
            raise blob.error


def place_blobs(blobs: Sequence[PendingBlob], folder: str) -> None:
    """Move synced blobs to their places in a store; blobs already in place are skipped."""
    for blob in blobs:
        if not blob.folders:
            place = f"{folder}/blobs/{blob.digest[:2]}"
            try:
                os.replace(blob.temporary, f"{place}/{blob.digest}")
                blob.folders = (place,)
            except FileNotFoundError:
                os.makedirs(place, exist_ok=True)
                os.replace(blob.temporary, f"{place}/{blob.digest}")
                blob.folders = (place, f"{folder}/blobs", folder)


def sync_places(blobs: Sequence[PendingBlob]) -> None:
    """Sync the folders with the blobs' names.

    Raises:
        OSError: the disk reports an error; then no name counts as durable.
    """
    try:
        sync_folders({folder for blob in blobs for folder in blob.folders})
    except OSError as error:
        for blob in blobs:
            blob.error = error
        raise


def _check(blobs: Sequence[PendingBlob]) -> None:
    for blob in blobs:
        if blob.error is not None:
            raise ContentLost(f"the disk lost written content ({blob.error}); add it again") from blob.error


def _close(blob: PendingBlob) -> None:
    os.close(blob.descriptor)
    if not blob.folders:
        with suppress(FileNotFoundError):
            os.unlink(blob.temporary)
