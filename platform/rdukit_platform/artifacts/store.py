"""Content by its digest: files as blobs, folders as a manifest of blobs. Stores differ in the place of their blobs.

A folder is a blob too: its manifest. A blob appears completely or not at all; adding it twice has no further effect.
Readers get the bytes of the digest or an error. A damaged blob is repaired when its content is added again.

Content without a row in the database is collected (``sweep``). Content is added within ``holding``, until a row refers
to it. Stores are in ``stores``: a folder that all nodes mount, or a bucket of S3.
"""

import hashlib
import logging
import os
import stat
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, Protocol

from rdukit.errors import Conflict, ContentDamaged, InvalidArgument, NoResources, NotFound
from rdukit.files.tree import check_kind, make_executable, read_tree
from rdukit_platform.artifacts.manifest import (
    FolderEntry,
    FolderManifest,
    check_lengths,
    make_manifest,
    read_manifest,
    write_manifest,
)

logger = logging.getLogger(__name__)

BLOCK: Final = 1 << 20
#: Largest number of blobs remembered as verified.
MAX_SOUND: Final = 10_000


class ContentDiffers(Conflict):
    """Content arrived with another digest than announced. Send it again."""

    def __init__(self, found: str, wanted: str) -> None:
        super().__init__(f"the received content has the SHA-256 {found}, not {wanted}; send it again")
        self.found = found


class ContentLost(NoResources):
    """Added content is not in the store, because the disk reported a late write error. Add it again."""


@dataclass(frozen=True, slots=True)
class Content:
    """Stored content: the blob's digest, the bytes of the file or of all the folder's files together."""

    digest: str
    bytes: int
    is_folder: bool


@dataclass(frozen=True, slots=True)
class StoredBlob:
    """A blob as a sweep sees it, or a foreign file among blobs. ``place`` is the blob's address in the store."""

    digest: str
    place: str
    bytes: int
    #: Seconds since the epoch by this machine's clock.
    written_at: float
    #: A younger copy of the same digest exists.
    is_surplus: bool = False


class PiecePlace(Protocol):
    """Storage of unfinished uploads: a description per upload, and a part per file that has begun."""

    def ids(self) -> Iterator[str]:
        """Yield the ids of uploads, and of entries that look like one."""

    def describe(self, id: str, data: bytes) -> None:
        """Store an upload's description."""

    def description(self, id: str) -> bytes | None:
        """Return an upload's description; ``None``: the upload has none."""

    def size(self, id: str, number: int) -> int:
        """Return the number of received bytes of a file."""

    def append(self, id: str, number: int, offset: int, piece: bytes, check: Callable[[int], None]) -> int:
        """Append a piece. ``check`` gets the number of present bytes and may refuse. Returns the new number."""

    def open(self, id: str, number: int) -> AbstractContextManager[BinaryIO]:
        """Open the received bytes of a file."""

    def drop(self, id: str, numbers: Iterable[int]) -> None:
        """Delete the received bytes of some files."""

    def remove(self, id: str) -> None:
        """Delete an upload."""

    def written_at(self, id: str) -> float:
        """Return when the last bytes were received, in seconds since the epoch."""


class PendingContent(ABC):
    """Content being added; it is durable in its store when ``BlobStore.keep`` has returned.

    Large content may be stored earlier. Not thread-safe.
    """

    @abstractmethod
    def _add(self, stream: BinaryIO, digest: str | None) -> tuple[str, int]:
        """Store the bytes of a stream. Returns their digest and number."""

    @abstractmethod
    def _publish(self, digest: str, data: bytes) -> None:
        """Store a few bytes of a known digest."""

    def add_stream(self, stream: BinaryIO, digest: str | None = None) -> Content:
        """Store the bytes of a stream, read in blocks.

        Args:
            digest: announced digest, if known; it is verified.
        Raises:
            ContentDiffers: the digest differs; nothing was stored.
        """
        return Content(*self._add(stream, digest), is_folder=False)

    def add_path(self, path: Path) -> Content:
        """Store a file, or a folder with everything below it.

        Raises:
            InvalidArgument: there is a link or something else that is neither file nor folder.
            NotFound: there is nothing at ``path``.
        """
        try:
            mode = path.lstat().st_mode
        except FileNotFoundError as cause:
            raise NotFound(f"{path} does not exist") from cause
        check_kind(path, mode)
        if stat.S_ISREG(mode):
            with _open_regular(path) as stream:
                return self.add_stream(stream)
        entries, tree = [], read_tree(path)
        for file in tree.files:
            with _open_regular(file.path) as stream:
                entries.append(FolderEntry(file.name, *self._add(stream, None), file.is_executable))
        return self.add_manifest(entries, tree.empty_folders)

    def add_manifest(self, entries: Sequence[FolderEntry], empty_folders: Sequence[str] = ()) -> Content:
        """Store a folder whose files are in the store already.

        Raises:
            InvalidArgument: a path is invalid, or a folder cannot hold all paths together.
        """
        check_lengths([entry.path for entry in entries])
        manifest = make_manifest(entries, empty_folders)
        data = write_manifest(manifest)
        digest = hashlib.sha256(data).hexdigest()
        self._publish(digest, data)
        return Content(digest, manifest.bytes, is_folder=True)

    @abstractmethod
    def drop(self) -> None:
        """Discard content that the store does not have yet; also called after ``keep``."""


class BlobStore(ABC):
    """A content-addressed store. Safe for concurrent processes and threads."""

    #: Largest error of blobs' times, in seconds.
    slack_s: float = 2.0

    def __init__(self) -> None:
        #: Verified blobs, each with its ``state`` at that time.
        self._sound: dict[str, tuple[object, ...]] = {}

    @property
    @abstractmethod
    def where(self) -> str:
        """Return a description of the store's place."""

    @property
    @abstractmethod
    def pieces(self) -> PiecePlace:
        """Return the place of uploads that have not ended."""

    @abstractmethod
    def begin(self) -> PendingContent:
        """Return a container for new content, to be stored by ``keep``; use it within ``holding`` until a row refers to
        it.
        """

    @abstractmethod
    def keep(self, added: PendingContent) -> None:
        """Store added content durably; afterwards a row may refer to it.

        A failed call may be repeated.

        Raises:
            ContentLost: some content is lost and must be added again.
        """

    @abstractmethod
    def _open(self, digest: str) -> Iterator[bytes]:
        """Yield a blob's bytes in blocks, unchecked; raises ``NotFound`` at the first."""

    @abstractmethod
    def read_range(self, digest: str, start: int, length: int) -> Iterator[bytes]:
        """Yield some bytes of a blob, in blocks; they are not verified: call ``check`` before.

        Raises:
            NotFound: no such blob, at the first block.
        """

    @abstractmethod
    def state(self, digest: str) -> tuple[object, ...]:
        """Return a value that changes when the blob is written again.

        Raises:
            NotFound: no such blob.
        """

    @abstractmethod
    def size(self, digest: str) -> int:
        """Return the size of a blob in bytes.

        Raises:
            NotFound: no such blob.
        """

    @abstractmethod
    def has(self, digest: str) -> bool:
        """Return whether the blob is there."""

    @abstractmethod
    def local(self, digest: str) -> AbstractContextManager[Path]:
        """Yield a file with a blob's bytes while the block lasts; it must not be changed.

        Raises:
            NotFound: no such blob.
        """

    @abstractmethod
    def holding(self) -> AbstractContextManager[None]:
        """Protect content added in the block from collection; before the block ends, a row must refer to it."""

    @abstractmethod
    def held_since(self) -> float | None:
        """Return the begin of the oldest active block of ``holding`` in any process; ``None``: there is none.

        Remains of dead processes are removed.
        """

    @abstractmethod
    def alone(self) -> AbstractContextManager[None]:
        """Exclude all other removals of content while the block lasts.

        Raises:
            Conflict: another process removes content, or excludes removals, too.
        """

    @abstractmethod
    def blobs(self) -> Iterator[StoredBlob]:
        """Yield the blobs, and files that killed processes left among them."""

    @abstractmethod
    def discard(self, blob: StoredBlob, before: float) -> bool:
        """Remove a blob. Returns false, and keeps the blob, if it was added again at ``before`` or later."""

    @abstractmethod
    def clear_incoming(self, before: float, on_step: Callable[[str], None]) -> None:
        """Remove incomplete content that was begun before a time. ``on_step`` is called for each."""

    @contextmanager
    def adding(self) -> Iterator[PendingContent]:
        """Yield a container whose content is stored when the block ends."""
        added = self.begin()
        try:
            yield added
            self.keep(added)
        finally:
            added.drop()

    def add_stream(self, stream: BinaryIO, digest: str | None = None) -> Content:
        """Store a stream, as ``PendingContent.add_stream`` does."""
        with self.adding() as added:
            return added.add_stream(stream, digest)

    def add_path(self, path: Path) -> Content:
        """Store a file or folder, as ``PendingContent.add_path`` does."""
        with self.adding() as added:
            return added.add_path(path)

    def add_manifest(self, entries: Sequence[FolderEntry], empty_folders: Sequence[str] = ()) -> Content:
        """Store a folder, as ``PendingContent.add_manifest`` does."""
        with self.adding() as added:
            return added.add_manifest(entries, empty_folders)

    def manifest(self, digest: str) -> FolderManifest:
        """Return a folder's files and empty folders, checked against its digest.

        Raises:
            NotFound: no such blob.
            ContentDamaged: the manifest does not match its digest.
        """
        data = b"".join(self.read(digest))
        try:
            return read_manifest(data)
        except ContentDamaged as cause:
            raise ContentDamaged(f"blob {digest} is not a folder's manifest") from cause

    def entries(self, digest: str) -> Sequence[FolderEntry]:
        """Return a folder's files. Raises as ``manifest``."""
        return self.manifest(digest).files

    def read(self, digest: str) -> Iterator[bytes]:
        """Yield a blob's bytes in blocks, and verify them at the end.

        Raises:
            NotFound: no such blob, at the first block.
            ContentDamaged: after the last block, if the bytes do not match the digest.
        """
        yield from self._checked(digest, self._open(digest))

    def read_kept(self, digest: str) -> Iterator[bytes]:
        """Yield a blob's bytes as ``read`` does, from the store itself and not from a local copy."""
        return self.read(digest)

    def check(self, digest: str) -> None:
        """Verify a blob by reading it, unless it was verified in its present state.

        Raises:
            NotFound: no such blob.
            ContentDamaged: its bytes do not match the digest.
        """
        state = self.state(digest)
        if self._sound.get(digest) != state:
            for _ in self.read(digest):
                pass
            if len(self._sound) >= MAX_SOUND:
                self._sound.clear()
            self._sound[digest] = state

    def materialize(self, digest: str, is_folder: bool, target: Path) -> None:
        """Copy content to ``target``, which must not exist, as read-only files; the copies are verified.

        Raises:
            NotFound: a blob is missing.
            ContentDamaged: a file's bytes do not match its digest.
        """
        if not is_folder:
            self._place(digest, target)
            return
        target.mkdir(parents=True)
        found = self.manifest(digest)
        for folder in found.folders:
            (target / folder).mkdir(parents=True)
        for entry in found.files:
            self._place(entry.digest, target / entry.path)
            if entry.executable:
                make_executable(target / entry.path)

    def _place(self, digest: str, target: Path) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("xb") as out:
            out.writelines(self.read(digest))
        target.chmod(0o444)

    def _checked(self, digest: str, blocks: Iterator[bytes]) -> Iterator[bytes]:
        found = hashlib.sha256()
        for block in blocks:
            found.update(block)
            yield block
        if found.hexdigest() != digest:
            logger.error("blob damaged digest=%s found=%s where=%s", digest, found.hexdigest(), self.where)
            raise damaged(digest, found.hexdigest())


def damaged(digest: str, found: str) -> ContentDamaged:
    """Return the error of changed content; it does not reveal the place of storage."""
    return ContentDamaged(f"content {digest} was changed in the store and now has the digest {found}; add it again")


def check_digest(digest: str) -> str:
    """Return the text if it is a SHA-256 in hexadecimal.

    Raises:
        InvalidArgument: the text has another form.
    """
    if len(digest) != 64 or set(digest) - set("0123456789abcdef"):
        raise InvalidArgument(f"{digest!r} is not a SHA-256 in hexadecimal")
    return digest


def _open_regular(path: Path) -> BinaryIO:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise InvalidArgument(f"{path} is no longer a file")
    return os.fdopen(descriptor, "rb")
