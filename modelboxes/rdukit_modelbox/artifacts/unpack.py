"""Archives → folders, within limits: no member leaves the folder, and a small file cannot fill the disk."""

import gzip
import lzma
import shutil
import stat
import tarfile
import zipfile
import zlib
from bz2 import BZ2File
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any, Final, Protocol

from rdukit.errors import InvalidArgument

#: Bytes that an archive may unpack to at any ratio: masks and zeros compress very well.
FREE_BYTES: Final = 256 << 20
MAX_MEMBERS: Final = 1_000_000
#: Suffixes of files that are unpacked where both a file and a folder are accepted.
ARCHIVE_SUFFIXES: Final = (".zip", ".tar", ".tgz", ".tar.gz", ".tbz2", ".tar.bz2", ".txz", ".tar.xz")
_BLOCK: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class UnpackLimits:
    """Largest total in bytes, and largest ratio of unpacked to packed bytes above ``FREE_BYTES``."""

    max_bytes: int
    max_ratio: int


class Budget:
    """Counter of the bytes unpacked from one archive."""

    def __init__(self, path: Path, limits: UnpackLimits, free_bytes: int = FREE_BYTES) -> None:
        packed = max(path.stat().st_size, 1)
        self._path = path
        self._left = min(limits.max_bytes, max(packed * limits.max_ratio, free_bytes))
        self._allowed = self._left

    def take(self, count: int) -> None:
        """Count ``count`` bytes more.

        Raises:
            InvalidArgument: the limits are exceeded.
        """
        self._left -= count
        if self._left < 0:
            raise InvalidArgument(
                f"{self._path.name} unpacks to more than {self._allowed} bytes, which is refused "
                "(artifacts.max_unpacked_bytes, artifacts.max_ratio)"
            )


def find_kind(path: Path) -> str | None:
    """Return ``zip``, ``tar`` (also compressed), or ``None`` for other files, judged by content."""
    with path.open("rb") as stream:
        head = stream.read(512)
    if head[:4] in {b"PK\x03\x04", b"PK\x05\x06"}:
        return "zip"
    if head[257:262] == b"ustar" or _opener(head) is not None:
        return "tar"
    return None


def unpack(path: Path, folder: Path, limits: UnpackLimits, step: Callable[[], None] = lambda: None) -> None:
    """Unpack a .zip, .tar, .tar.gz, .tar.bz2 or .tar.xz into ``folder``, which must be new.

    ``step`` is called between blocks and may raise.

    Raises:
        InvalidArgument: no archive, damaged, too large, or a member is a link, a device or outside the folder.
    """
    folder.mkdir(parents=True)
    try:
        with _damage(path):
            members = _zip_members(path, limits) if find_kind(path) == "zip" else _tar_members(path, limits)
            for number, (name, stream) in enumerate(members):
                if number >= MAX_MEMBERS:
                    raise InvalidArgument(f"{path.name} has more than {MAX_MEMBERS} members")
                _write(path, folder, name, stream, step)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def check_zip(path: Path, limits: UnpackLimits) -> None:
    """Refuse a zip file (an ``.npz`` is one) whose declared unpacked size is too large; readers stop at the declared
    size.

    Raises:
        InvalidArgument: too large, or damaged.
    """
    with _damage(path), zipfile.ZipFile(path) as archive:
        _check_claims(path, archive.infolist(), limits)


def _zip_members(path: Path, limits: UnpackLimits) -> Iterator[tuple[str, "_Readable | None"]]:
    with zipfile.ZipFile(path) as archive:
        infos = archive.infolist()
        _check_claims(path, infos, limits)
        budget = Budget(path, limits)
        for info in infos:
            kind = stat.S_IFMT(info.external_attr >> 16)
            if kind not in {0, stat.S_IFREG, stat.S_IFDIR}:
                raise InvalidArgument(
                    f"{path.name}: member {info.filename!r} is a link or device; expected files and folders"
                )
            if info.flag_bits & 1:
                raise InvalidArgument(
                    f"{path.name}: member {info.filename!r} is encrypted and cannot be read; "
                    "expected an archive without encryption"
                )
            if info.is_dir():
                yield info.filename, None
                continue
            with archive.open(info) as stream:
                yield info.filename, _Counted(stream, budget)


def _check_claims(path: Path, infos: Iterable[zipfile.ZipInfo], limits: UnpackLimits) -> None:
    budget = Budget(path, limits)
    for info in infos:
        budget.take(info.file_size)


def _tar_members(path: Path, limits: UnpackLimits) -> Iterator[tuple[str, "_Readable | None"]]:
    with path.open("rb") as raw:
        opener = _opener(raw.read(6))
        raw.seek(0)
        plain: _Readable = raw if opener is None else opener(raw)
        # Headers count, too, or an archive of only headers would evade the limits.
        counted: Any = _Counted(plain, Budget(path, limits))
        with tarfile.open(fileobj=counted, mode="r|") as archive:
            for member in archive:
                if member.isdir():
                    yield member.name, None
                elif member.isreg():
                    stream = archive.extractfile(member)
                    assert stream is not None
                    yield member.name, stream
                else:
                    raise InvalidArgument(
                        f"{path.name}: member {member.name!r} is a link or device; expected files and folders"
                    )


class _Readable(Protocol):
    """The part of a stream's interface that unpacking needs."""

    def read(self, size: int = -1, /) -> bytes: ...


def _gunzip(raw: IO[bytes]) -> _Readable:
    return gzip.GzipFile(fileobj=raw)


def _opener(head: bytes) -> Callable[[IO[bytes]], _Readable] | None:
    if head.startswith(b"\x1f\x8b"):
        return _gunzip
    if head.startswith(b"BZh"):
        return BZ2File
    if head.startswith(b"\xfd7zXZ\x00"):
        return lzma.LZMAFile
    return None


class _Counted:
    """A stream whose bytes count against a budget."""

    def __init__(self, stream: _Readable, budget: Budget) -> None:
        self._stream = stream
        self._budget = budget

    def read(self, size: int = -1, /) -> bytes:
        """Read at most ``size`` bytes, and at most a block."""
        data = self._stream.read(_BLOCK if size < 0 else size)
        self._budget.take(len(data))
        return data


def _write(path: Path, folder: Path, name: str, stream: "_Readable | None", step: Callable[[], None]) -> None:
    parts = PurePosixPath(name).parts
    if not parts or name.startswith("/") or "\\" in name or "\0" in name or ".." in parts or len(name) > 1000:
        raise InvalidArgument(f"{path.name}: member {name!r} leads out of the archive; expected relative paths")
    target = folder.joinpath(*parts)
    if stream is None:
        target.mkdir(parents=True, exist_ok=True)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        # "x": different readers could read different contents for a member that occurs twice.
        with target.open("xb") as written:
            while block := stream.read(_BLOCK):
                written.write(block)
                step()
    except (FileExistsError, IsADirectoryError) as cause:
        raise InvalidArgument(f"{path.name}: member {name!r} is repeated; expected each once") from cause


@contextmanager
def _damage(path: Path) -> Iterator[None]:
    try:
        yield
    except (zipfile.BadZipFile, tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, NotImplementedError) as cause:
        raise InvalidArgument(f"{path.name} is not a readable archive: {cause}") from cause
    except OSError as cause:
        if cause.errno is None:  # what gzip and bz2 raise for bad data
            raise InvalidArgument(f"{path.name} is not a readable archive: {cause}") from cause
        raise
