"""Content by its digest: files as blobs, folders as a manifest of blobs. Where they lie is the store's matter.

A folder is a blob too: its manifest. A blob appears whole or not at all; having it twice is having it once. Whoever
gets bytes gets those of the digest or an error; a blob that somebody has changed is mended when the right bytes are
added again.

What no row of the database refers to is collected (``sweep``). Whoever adds content does so within ``holding`` until
a row refers to it. Stores are in ``stores``: a folder that all nodes mount, or a bucket of S3.
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
#: Blobs that are remembered as right.
MAX_SOUND: Final = 10_000


class ContentDiffers(Conflict):
    """Content arrived with another digest than was announced. Send it again."""

    def __init__(self, found: str, wanted: str) -> None:
        super().__init__(f"what came has the SHA-256 {found}, not {wanted}; send it again")
        self.found = found


class ContentLost(NoResources):
    """Content that was added is not in the store: a disk has refused it after it was written. Add it again."""


@dataclass(frozen=True, slots=True)
class Content:
    """Stored content: the blob's digest, the bytes of the file or of all the folder's files together."""

    digest: str
    bytes: int
    is_folder: bool


@dataclass(frozen=True, slots=True)
class StoredBlob:
    """A blob as a sweep sees it, or what somebody left where blobs are. ``place`` is the store's own word for where."""

    digest: str
    place: str
    bytes: int
    #: Seconds since the epoch by this machine's clock.
    written_at: float
    #: There is a younger one of the same digest.
    is_surplus: bool = False


class PiecePlace(Protocol):
    """Place of what has come of uploads: for each upload a description, and a part for each file that has begun."""

    def ids(self) -> Iterator[str]:
        """Yield the uploads, and what looks like one."""

    def describe(self, id: str, data: bytes) -> None:
        """Write an upload's description."""

    def description(self, id: str) -> bytes | None:
        """Return an upload's description; ``None``: it has none."""

    def size(self, id: str, number: int) -> int:
        """Return how many bytes of a file have come."""

    def append(self, id: str, number: int, offset: int, piece: bytes, check: Callable[[int], None]) -> int:
        """Add a piece. ``check`` is told how many bytes there are and may refuse. Returns how many there are then."""

    def open(self, id: str, number: int) -> AbstractContextManager[BinaryIO]:
        """Open what has come of a file."""

    def drop(self, id: str, numbers: Iterable[int]) -> None:
        """Forget what has come of some files."""

    def remove(self, id: str) -> None:
        """Forget an upload."""

    def written_at(self, id: str) -> float:
        """Return when something came last."""


class PendingContent(ABC):
    """Content that is added, and that its store has when ``BlobStore.keep`` has ended.

    What is large or much the store may have before. For one thread at a time.
    """

    @abstractmethod
    def _add(self, stream: BinaryIO, digest: str | None) -> tuple[str, int]:
        """Store what a stream gives. Returns its digest and how many bytes it has."""

    @abstractmethod
    def _publish(self, digest: str, data: bytes) -> None:
        """Store a few bytes of a known digest."""

    def add_stream(self, stream: BinaryIO, digest: str | None = None) -> Content:
        """Store what the stream gives, in blocks.

        Args:
            digest: what it is said to be, if that is known; it is not believed.
        Raises:
            ContentDiffers: it is something else; then nothing was stored.
        """
        return Content(*self._add(stream, digest), is_folder=False)

    def add_path(self, path: Path) -> Content:
        """Store a file, or a folder with all below it.

        Raises:
            InvalidArgument: there is a link or something else that is neither file nor folder.
            NotFound: there is nothing at ``path``.
        """
        try:
            mode = path.lstat().st_mode
        except FileNotFoundError as cause:
            raise NotFound(f"there is nothing at {path}") from cause
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
            InvalidArgument: a path is none, or no folder could have all of them.
        """
        check_lengths([entry.path for entry in entries])
        manifest = make_manifest(entries, empty_folders)
        data = write_manifest(manifest)
        digest = hashlib.sha256(data).hexdigest()
        self._publish(digest, data)
        return Content(digest, manifest.bytes, is_folder=True)

    @abstractmethod
    def drop(self) -> None:
        """Forget what the store does not have yet. What is to be kept is dropped afterwards, too."""


class BlobStore(ABC):
    """A content-addressed store. Safe for several processes and threads."""

    #: Seconds by which times of blobs may be wrong.
    slack_s: float = 2.0

    def __init__(self) -> None:
        #: Blobs that were read whole and were right, with what the store said of each then.
        self._sound: dict[str, tuple[object, ...]] = {}

    @property
    @abstractmethod
    def where(self) -> str:
        """Return in words where the store keeps its content."""

    @property
    @abstractmethod
    def pieces(self) -> PiecePlace:
        """Return the place of uploads that have not ended."""

    @abstractmethod
    def begin(self) -> PendingContent:
        """Return where content is added that is kept later, within ``holding`` from now until a row refers to it."""

    @abstractmethod
    def keep(self, added: PendingContent) -> None:
        """Have the content, as nothing takes it away any more: a row that refers to it may be written then.

        What has failed may be tried again.

        Raises:
            ContentLost: something of it cannot be had: it is to be added again.
        """

    @abstractmethod
    def _open(self, digest: str) -> Iterator[bytes]:
        """Yield a blob's bytes in blocks, unchecked; raises ``NotFound`` at the first."""

    @abstractmethod
    def read_range(self, digest: str, start: int, length: int) -> Iterator[bytes]:
        """Yield some bytes of a blob, in blocks; they are not compared with its digest: ``check`` it before.

        Raises:
            NotFound: no such blob, at the first block.
        """

    @abstractmethod
    def state(self, digest: str) -> tuple[object, ...]:
        """Return what is another value when the blob is written again.

        Raises:
            NotFound: no such blob.
        """

    @abstractmethod
    def size(self, digest: str) -> int:
        """Return how many bytes a blob has.

        Raises:
            NotFound: no such blob.
        """

    @abstractmethod
    def has(self, digest: str) -> bool:
        """Return whether the blob is there."""

    @abstractmethod
    def local(self, digest: str) -> AbstractContextManager[Path]:
        """Yield a file with a blob's bytes, for as long as the block goes on; nobody may change it.

        Raises:
            NotFound: no such blob.
        """

    @abstractmethod
    def holding(self) -> AbstractContextManager[None]:
        """Keep what is added in the block from being collected until the block ends; a row refers to it by then."""

    @abstractmethod
    def held_since(self) -> float | None:
        """Return when the oldest block of ``holding`` that goes on began, in any process; ``None``: there is none.

        What processes that are gone have left is removed.
        """

    @abstractmethod
    def alone(self) -> AbstractContextManager[None]:
        """Let nobody else remove content meanwhile.

        Raises:
            Conflict: somebody removes some just now, or does not want it removed.
        """

    @abstractmethod
    def blobs(self) -> Iterator[StoredBlob]:
        """Yield the blobs, and what a process that was killed left beside them."""

    @abstractmethod
    def discard(self, blob: StoredBlob, before: float) -> bool:
        """Remove a blob. Returns false if it came again at ``before`` or later: then it stays."""

    @abstractmethod
    def clear_incoming(self, before: float, on_step: Callable[[str], None]) -> None:
        """Remove what was begun before a time and is not whole. ``on_step`` is told of each."""

    @contextmanager
    def adding(self) -> Iterator[PendingContent]:
        """Keep what is added in the block when it ends."""
        added = self.begin()
        try:
            yield added
            self.keep(added)
        finally:
            added.drop()

    def add_stream(self, stream: BinaryIO, digest: str | None = None) -> Content:
        """Keep what ``PendingContent.add_stream`` adds."""
        with self.adding() as added:
            return added.add_stream(stream, digest)

    def add_path(self, path: Path) -> Content:
        """Keep what ``PendingContent.add_path`` adds."""
        with self.adding() as added:
            return added.add_path(path)

    def add_manifest(self, entries: Sequence[FolderEntry], empty_folders: Sequence[str] = ()) -> Content:
        """Keep what ``PendingContent.add_manifest`` adds."""
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
        """Yield a blob's bytes, in blocks; hashed on the way.

        Raises:
            NotFound: no such blob, at the first block.
            ContentDamaged: after the last block, if the bytes do not match the digest.
        """
        yield from self._checked(digest, self._open(digest))

    def read_kept(self, digest: str) -> Iterator[bytes]:
        """Do as ``read``, from where the content is kept and not from a copy of it."""
        return self.read(digest)

    def check(self, digest: str) -> None:
        """Read a blob through, once for as long as it stays as it is.

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
        """Put content at ``target``, which must not exist: read-only copies, checked as they are made.

        Raises:
            NotFound: a blob is missing.
            ContentDamaged: the bytes of one do not match its digest.
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
    """Return the error of content that is not what it was; whoever may read it is not told where it is kept."""
    return ContentDamaged(f"content {digest} was changed where it is kept; it is {found} now; add it again")


def check_digest(digest: str) -> str:
    """Return the text if it is a SHA-256 in hexadecimal.

    Raises:
        InvalidArgument: it is not.
    """
    if len(digest) != 64 or set(digest) - set("0123456789abcdef"):
        raise InvalidArgument(f"{digest!r} is not a SHA-256 in hexadecimal")
    return digest


def _open_regular(path: Path) -> BinaryIO:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise InvalidArgument(f"{path} is not a file any more")
    return os.fdopen(descriptor, "rb")
