"""Content by its digest: files as blobs, folders as a manifest of blobs.

``blobs/ab/abcdef…`` holds the bytes whose SHA-256 is the name, read-only. A folder is a blob too: the JSON
``{"files": [{"path", "digest", "bytes"}]}``, sorted by path. A blob appears whole or not at all; having it twice is
having it once. Whoever gets bytes gets those of the digest or an error; a blob that the disk or somebody has changed
is mended when the right bytes are added again.

What no row of the database refers to is collected (``sweep``). Whoever adds content does so within ``holding`` until
a row refers to it: a file in ``holds``, locked for as long, says since when.
"""

import fcntl
import hashlib
import json
import logging
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Final

from rdukit.errors import InvalidArgument, NotFound, RdukitError
from rdukit.files.atomic import atomic_target

logger = logging.getLogger(__name__)

BLOCK: Final = 1 << 20
#: Blobs that are remembered as right.
MAX_SOUND: Final = 10_000


class ContentDamaged(RdukitError):
    """Stored content no longer matches its digest: the disk or somebody changed it. Add the artifact again."""

    code = "content-damaged"


@dataclass(frozen=True, slots=True)
class Content:
    """Stored content: the blob's digest, the bytes of the file or of all the folder's files together."""

    digest: str
    bytes: int
    is_folder: bool


@dataclass(frozen=True, slots=True)
class FolderEntry:
    """A file of a folder. ``path`` is relative, with forward slashes."""

    path: str
    digest: str
    bytes: int


class BlobStore:
    """A content-addressed store in one folder. Safe for several processes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        #: Blobs that were read whole and were right, with what the file system said of each then.
        self._sound: dict[str, tuple[int, int, int]] = {}

    def path(self, digest: str) -> Path:
        """Return the place where a blob lies, or would."""
        if len(digest) != 64 or set(digest) - set("0123456789abcdef"):
            raise InvalidArgument(f"{digest!r} is not a SHA-256 in hexadecimal")
        return self.folder / "blobs" / digest[:2] / digest

    def add_stream(self, stream: BinaryIO) -> Content:
        """Store what the stream gives, in blocks."""
        return Content(*self._add(stream), is_folder=False)

    def add_path(self, path: Path) -> Content:
        """Store a file, or a folder with all below it.

        Raises:
            InvalidArgument: there is a link or something else that is neither file nor folder.
            NotFound: there is nothing at ``path``.
        """
        kind = _kind(path)
        if stat.S_ISREG(kind):
            with _open_regular(path) as stream:
                return self.add_stream(stream)
        entries = []
        for file, relative in _walk(path):
            with _open_regular(file) as stream:
                digest, size = self._add(stream)
            entries.append(FolderEntry(relative, digest, size))
        return self.add_manifest(entries)

    def add_manifest(self, entries: Sequence[FolderEntry]) -> Content:
        """Store a folder whose files are in the store already."""
        ordered = sorted(entries, key=lambda entry: entry.path)
        check_paths([entry.path for entry in ordered])
        files = [{"path": check_relative(e.path), "digest": e.digest, "bytes": e.bytes} for e in ordered]
        data = json.dumps({"files": files}, sort_keys=True, separators=(",", ":")).encode()
        digest = hashlib.sha256(data).hexdigest()
        self._publish(digest, data)
        return Content(digest, sum(entry.bytes for entry in ordered), is_folder=True)

    def entries(self, digest: str) -> list[FolderEntry]:
        """Return the files of a folder, checked against its digest.

        Raises:
            NotFound: no such blob.
            ContentDamaged: the manifest does not match its digest.
        """
        data = b"".join(self.read(digest))
        try:
            return [
                FolderEntry(check_relative(f["path"]), f["digest"], int(f["bytes"])) for f in json.loads(data)["files"]
            ]
        except (ValueError, KeyError, TypeError) as cause:
            raise ContentDamaged(f"blob {digest} is not a folder's manifest") from cause

    def read(self, digest: str) -> Iterator[bytes]:
        """Yield a blob's bytes, in blocks; hashed on the way.

        Raises:
            NotFound: no such blob, at the first block.
            ContentDamaged: after the last block, if the bytes do not match the digest.
        """
        found = hashlib.sha256()
        try:
            stream = self.path(digest).open("rb")
        except FileNotFoundError as cause:
            raise NotFound(f"the store has no content {digest}") from cause
        with stream:
            while block := stream.read(BLOCK):
                found.update(block)
                yield block
        if found.hexdigest() != digest:
            logger.error("blob damaged digest=%s found=%s", digest, found.hexdigest())
            raise ContentDamaged(f"content {digest} was changed on the disk; it is {found.hexdigest()} now")

    def read_range(self, digest: str, start: int, length: int) -> Iterator[bytes]:
        """Yield some bytes of a blob, in blocks; they are not compared with its digest: ``check`` it before.

        Raises:
            NotFound: no such blob, at the first block.
        """
        try:
            stream = self.path(digest).open("rb")
        except FileNotFoundError as cause:
            raise NotFound(f"the store has no content {digest}") from cause
        with stream:
            stream.seek(start)
            while length > 0 and (block := stream.read(min(BLOCK, length))):
                length -= len(block)
                yield block

    def has(self, digest: str) -> bool:
        """Return whether the blob is there."""
        return self.path(digest).is_file()

    def check(self, digest: str) -> None:
        """Read a blob through, once for as long as the file stays as it is.

        Raises:
            NotFound: no such blob.
            ContentDamaged: its bytes do not match the digest.
        """
        try:
            found = self.path(digest).stat()
        except FileNotFoundError as cause:
            raise NotFound(f"the store has no content {digest}") from cause
        state = (found.st_ino, found.st_size, found.st_mtime_ns)
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
        for entry in self.entries(digest):
            self._place(entry.digest, target / entry.path)

    @contextmanager
    def holding(self) -> Iterator[None]:
        """Keep what is added in the block from being collected until the block ends; a row refers to it by then."""
        holds = self.folder / "holds"
        holds.mkdir(parents=True, exist_ok=True)
        descriptor, path = _make_hold(holds)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)
            os.close(descriptor)

    def held_since(self) -> float | None:
        """Return when the oldest block of ``holding`` that goes on began, in any process; ``None``: there is none.

        What processes that are gone have left is removed.
        """
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
    def changing(self, *, is_alone: bool = False) -> Iterator[None]:
        """Hold the lock of the blobs' names: together with others who add some, or alone to take one away."""
        self.folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX if is_alone else fcntl.LOCK_SH)
            yield
        finally:
            os.close(descriptor)

    def _place(self, digest: str, target: Path) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("xb") as out:
            out.writelines(self.read(digest))
        target.chmod(0o444)

    def _add(self, stream: BinaryIO) -> tuple[str, int]:
        incoming = self.folder / "incoming"
        incoming.mkdir(parents=True, exist_ok=True)
        # The digest is known only at the end, so the bytes go to a temporary file first.
        temporary = incoming / f"{os.getpid()}-{os.urandom(8).hex()}"
        digest, size = hashlib.sha256(), 0
        try:
            with temporary.open("xb") as out:
                while block := stream.read(BLOCK):
                    digest.update(block)
                    out.write(block)
                    size += len(block)
                out.flush()
                os.fsync(out.fileno())
            self._adopt(temporary, digest.hexdigest())
        finally:
            temporary.unlink(missing_ok=True)
        return digest.hexdigest(), size

    def _adopt(self, temporary: Path, digest: str) -> None:
        # Also where the content is there: how long an upload takes must not tell that another tenant has it.
        target = self.path(digest)
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary.chmod(0o444)
        with self.changing():
            temporary.replace(target)

    def _publish(self, digest: str, data: bytes) -> None:
        with self.changing(), atomic_target(self.path(digest)) as temporary:
            temporary.write_bytes(data)
            temporary.chmod(0o444)


def _make_hold(holds: Path) -> tuple[int, Path]:
    while True:
        path = holds / f"{os.getpid()}-{os.urandom(8).hex()}"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        # A collector that came before the lock took it for a dead process's, and has removed it.
        if os.fstat(descriptor).st_nlink:
            return descriptor, path
        os.close(descriptor)


def check_paths(paths: Sequence[str]) -> None:
    """Refuse the paths of a folder that no file system could hold together.

    Raises:
        InvalidArgument: two are equal, or one is a folder of another.
    """
    known = set(paths)
    if len(known) != len(paths):
        raise InvalidArgument("two files of the folder have the same path")
    for path in paths:
        for parent in PurePosixPath(path).parents:
            if str(parent) in known:
                raise InvalidArgument(f"{str(parent)!r} is a file of the folder, and {path!r} would lie inside it")


def check_relative(text: str) -> str:
    """``text`` if it is a plain relative path with forward slashes.

    Raises:
        InvalidArgument: it is absolute, empty, or would leave its folder.
    """
    parts = text.split("/")
    if not text or "\0" in text or "\\" in text or PurePosixPath(text).is_absolute():
        raise InvalidArgument(f"{text!r} is not a legal path inside a folder")
    if any(part in {"", ".", ".."} for part in parts):
        raise InvalidArgument(f"{text!r} leaves its folder or has empty parts; legal are plain relative paths")
    return text


def _walk(folder: Path) -> Iterator[tuple[Path, str]]:
    for path in sorted(folder.rglob("*")):
        kind = _kind(path)
        if stat.S_ISREG(kind):
            yield path, path.relative_to(folder).as_posix()


def _kind(path: Path) -> int:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError as cause:
        raise NotFound(f"there is nothing at {path}") from cause
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise InvalidArgument(f"{path} is neither a file nor a folder; links and devices are not stored")
    return mode


def _open_regular(path: Path) -> BinaryIO:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise InvalidArgument(f"{path} is not a file any more")
    return os.fdopen(descriptor, "rb")
