"""Content on its way into a store that is a folder: the files of a folder wait for the disk together.

A blob is written to ``incoming``, without a wait. When it is kept, the disk first has its bytes, then it gets its name,
and then the disk has the name: whatever has the name of a digest has its bytes, also after a power failure, and a
blob's row is written when it cannot lose its name any more. A blob that is there already gets the new file in its
place: it may be damaged; and how long an upload takes must not tell that another tenant has it.

A disk may refuse what it had taken, and says so once. So a blob of which it did is not tried again.
"""

import hashlib
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import BinaryIO, Final

from rdukit.files.durable import sync_files, sync_folders
from rdukit_platform.artifacts.store import BLOCK, ContentDiffers, ContentLost, PendingContent, check_digest

#: Files and bytes of one ``PendingBlobs`` at most; with more it waits for the disk itself, so that others need not.
MAX_FILES: Final = 8
MAX_BYTES: Final = 1 << 20
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_NUMBERS: Final = count()


@dataclass(slots=True, eq=False)
class PendingBlob:
    """A file in ``incoming`` on its way to its place. It stays open: so it tells of each error since it was written."""

    descriptor: int
    temporary: str
    #: One with a smaller number was opened before this was written.
    number: int = field(default_factory=lambda: next(_NUMBERS))
    digest: str = ""
    #: With its place, the folders that have got names for it.
    folders: tuple[str, ...] = ()
    #: What the disk has said of it.
    error: OSError | None = None


class PendingBlobs(PendingContent):
    """Blobs that are kept together."""

    def __init__(self, folder: str, keep: Callable[[Sequence[PendingBlob]], None]) -> None:
        """
        Args:
            folder: the store's.
            keep: has blobs on the disk.
        """
        self._incoming, self._keep = f"{folder}/incoming", keep
        #: Names of its files begin with it.
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
                _write(blob.descriptor, block)
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
            _write(blob.descriptor, data)
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
        """Wait with a blob that is written, or forget one that is not."""
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
    """Wait until the disk has the bytes of those that have no place yet.

    Raises:
        OSError: it refuses some just now.
        ContentLost: it has refused some before.
    """
    _check(blobs)
    waiting = sorted((blob for blob in blobs if not blob.folders), key=lambda blob: blob.number)
    for blob, error in zip(waiting, sync_files([blob.descriptor for blob in waiting]), strict=True):
        blob.error = error
    for blob in waiting:
        if blob.error is not None:
            raise blob.error


def place_blobs(blobs: Sequence[PendingBlob], folder: str) -> None:
    """Give blobs that the disk has their places in a store; those that have them already keep them."""
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
    """Wait until the disk has the names of blobs.

    Raises:
        OSError: it refuses some; then it is to be known of none.
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
            raise ContentLost(
                f"the disk did not take content that was written ({blob.error}); it is to be added again"
            ) from blob.error


def _write(descriptor: int, data: bytes) -> None:
    """Write all: a disk that is nearly full takes a part."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _close(blob: PendingBlob) -> None:
    os.close(blob.descriptor)
    if not blob.folders:
        with suppress(FileNotFoundError):
            os.unlink(blob.temporary)
