"""Read a box's output while the box may still run: only files and folders, within limits.

A box controls its folder, and may change it during the read. Through a link, the reader would store another file; a
pipe would block it for ever; a sparse file is small on the box's disk and huge in the store. Therefore each path
component is opened relative to the open folder before it, without following links, and checked after it is open.
Whatever the box does meanwhile, the reader stays in its folder.
"""

import os
import stat
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from io import BufferedReader, FileIO, RawIOBase
from pathlib import Path
from typing import Any, BinaryIO, Final

from rdukit.errors import OutputRefused
from rdukit.files.tree import RUNNABLE, is_utf8

#: Bytes that a file may lack on the disk, because of compression in the file system.
MAX_HOLE_BYTES: Final = 1 << 30
MAX_DEPTH: Final = 100
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_KINDS: Final = {
    stat.S_IFLNK: "a symbolic link", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class OutputFile:
    """A file of an output, which stays open until the next one is requested. ``path``: in the output's folder."""

    path: str
    stream: BinaryIO
    is_executable: bool


_Files = Generator[OutputFile, None, None]


@dataclass(frozen=True, slots=True)
class OutputLimits:
    """Limits of one output, all files together; None: no limit."""

    bytes: int | None = 256 << 30
    files: int | None = 1_000_000


@dataclass(frozen=True, slots=True)
class OpenOutput:
    """An output during the read: an iterator of its files, each with its path in the folder.

    An output that is a file has the path ``""``. Each file is closed when the next one is requested. ``empty_folders``
    is complete after the last file.
    """

    is_folder: bool
    files: Iterator[OutputFile]
    empty_folders: Sequence[str]


@contextmanager
def open_output(root: Path, path: Path, limits: OutputLimits) -> Iterator[OpenOutput]:
    """Open an output, a file or a folder, in the folder ``root`` that a box writes to, and yield it.

    Raises:
        OutputRefused: the output is not in ``root``, or has an entry that is not allowed, found here or while it is
            read. The message has the reason and the path.
    """
    *way, last = _parts(root, path)
    reading = _Reading(path, limits)
    with ExitStack() as opened:
        here, shown = _keep(opened, os.open(root, _FOLDER)), str(root)
        for name in way:
            shown = f"{shown}/{name}"
            here = _keep(opened, _step(here, name, shown))
        is_folder = stat.S_ISDIR(_look(here, last, str(path)).st_mode)
        files = reading.walk(here, last) if is_folder else reading.one(here, last)
        opened.callback(files.close)
        yield OpenOutput(is_folder, files, reading.empty_folders)


@dataclass(slots=True)
class _Reading:
    """Progress of reading an output: bytes and files so far, and open folders."""

    path: Path
    limits: OutputLimits
    bytes: int = 0
    files: int = 0
    #: Open folders on the way to the file that is read.
    folders: list[int] = field(default_factory=list)
    empty_folders: list[str] = field(default_factory=list)

    def one(self, folder: int, name: str) -> _Files:
        """Yield the file of an output that is a file."""
        self._count()
        with self._open(folder, name, str(self.path)) as stream:
            yield OutputFile("", stream, _is_executable(stream))

    def walk(self, folder: int, name: str) -> _Files:
        """Yield the files of an output that is a folder; within each folder, in the order of names."""
        self._count()
        try:
            waiting = [("", self._enter(folder, name, str(self.path)))]
            while waiting:
                inside, names = waiting[-1]
                if not names:
                    waiting.pop()
                    os.close(self.folders.pop())
                    continue
                name, folder = names.pop(), self.folders[-1]
                relative = f"{inside}{name}"
                shown = f"{self.path}/{relative}"
                self._count()
                if not stat.S_ISDIR(_look(folder, name, shown).st_mode):
                    with self._open(folder, name, shown) as stream:
                        yield OutputFile(relative, stream, _is_executable(stream))
                    continue
                if len(waiting) > MAX_DEPTH:
                    raise OutputRefused(f"output {self.path} has folders in folders, more than {MAX_DEPTH} deep")
                names_in = self._enter(folder, name, shown)
                if not names_in:
                    self.empty_folders.append(relative)
                waiting.append((f"{relative}/", names_in))
        finally:
            for descriptor in self.folders:
                os.close(descriptor)

    def _enter(self, folder: int, name: str, shown: str) -> list[str]:
        """Open a folder, which ``walk`` closes; return the names in it, in descending order."""
        self.folders.append(_step(folder, name, shown))
        return sorted(_names_in(self.folders[-1], shown), reverse=True)

    def _count(self) -> None:
        self.files += 1
        if self.limits.files is not None and self.files > self.limits.files:
            raise OutputRefused(f"output {self.path} has more than {self.limits.files} files and folders")

    def _open(self, folder: int, name: str, shown: str) -> BinaryIO:
        try:
            descriptor = os.open(name, _FILE, dir_fd=folder)
        except OSError as cause:
            raise OutputRefused(f"{shown!r} in the output cannot be read: {cause.strerror}") from cause
        try:
            found = os.fstat(descriptor)
            _check_file(shown, found)
            if self.limits.bytes is not None and self.bytes + found.st_size > self.limits.bytes:
                raise OutputRefused(self._too_much())
        except BaseException:
            os.close(descriptor)
            raise
        return BufferedReader(_Counted(descriptor, self))

    def take(self, count: int) -> None:
        """Count read bytes: a file may grow meanwhile."""
        self.bytes += count
        if self.limits.bytes is not None and self.bytes > self.limits.bytes:
            raise OutputRefused(self._too_much())

    def _too_much(self) -> str:
        return f"output {self.path} has more than {self.limits.bytes} bytes"


class _Counted(RawIOBase):
    """File whose bytes are counted block by block: a file that grows while it is read is refused before it fills the
    memory.
    """

    def __init__(self, descriptor: int, reading: _Reading) -> None:
        self._file, self._reading = FileIO(descriptor, "rb"), reading

    def fileno(self) -> int:
        """Return the descriptor of the open file."""
        return self._file.fileno()

    def readable(self) -> bool:
        """Return True: the base class reads through ``readinto``."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read into a buffer; return the number of bytes."""
        count = self._file.readinto(buffer) or 0
        self._reading.take(count)
        return count

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        super().close()


def _parts(root: Path, path: Path) -> tuple[str, ...]:
    try:
        parts = path.relative_to(root).parts
    except ValueError as cause:
        raise OutputRefused(f"the box names {str(path)!r} as output; expected paths inside {root}") from cause
    if not parts or ".." in parts or "\0" in str(path):
        raise OutputRefused(f"the box names {str(path)!r} as output; expected paths inside {root}")
    return parts


def _keep(opened: ExitStack, descriptor: int) -> int:
    opened.callback(os.close, descriptor)
    return descriptor


def _look(folder: int, name: str, shown: str) -> os.stat_result:
    try:
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except (OSError, ValueError) as cause:
        raise OutputRefused(f"output {shown} does not exist") from cause
    _check_kind(shown, found)
    return found


def _step(folder: int, name: str, shown: str) -> int:
    try:
        return os.open(name, _FOLDER, dir_fd=folder)
    except (OSError, ValueError) as cause:
        if not stat.S_ISDIR(_look(folder, name, shown).st_mode):
            raise OutputRefused(f"{shown!r} on the path to the output is not a folder") from cause
        if isinstance(cause, ValueError):
            raise
        raise OutputRefused(f"the folder {shown!r} in an output cannot be read: {cause.strerror}") from cause


def _names_in(folder: int, shown: str) -> list[str]:
    try:
        names = os.listdir(folder)
    except OSError as cause:
        raise OutputRefused(f"the folder {shown!r} in an output cannot be read: {cause.strerror}") from cause
    for name in names:
        if not is_utf8(name):
            raise OutputRefused(f"{os.fsencode(name)!r} in the output {shown!r} is not valid UTF-8")
    return names


def _is_executable(stream: BinaryIO) -> bool:
    return bool(os.fstat(stream.fileno()).st_mode & RUNNABLE)


def _check_kind(shown: str, found: os.stat_result) -> None:
    kind = stat.S_IFMT(found.st_mode)
    if kind in _KINDS:
        raise OutputRefused(f"{shown!r} in the output is {_KINDS[kind]}; expected files and folders")


def _check_file(shown: str, found: os.stat_result) -> None:
    _check_kind(shown, found)
    if not stat.S_ISREG(found.st_mode):
        raise OutputRefused(f"{shown!r} in the output is no longer a file")
    if found.st_nlink > 1:
        raise OutputRefused(f"{shown!r} in the output is a hard link: the file also has another name")
    if found.st_size - found.st_blocks * 512 > MAX_HOLE_BYTES:
        raise OutputRefused(
            f"{shown!r} in the output has holes: {found.st_size} bytes, of which {found.st_blocks * 512} are there"
        )
