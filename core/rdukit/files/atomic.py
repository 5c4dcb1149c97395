"""Writes files so that a crash at any point leaves the old file or the new one, never a part."""

import contextlib
import hashlib
import json
import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

from rdukit.files.home import PRIVATE, make_folder
from rdukit.strict_json import as_words

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def write_atomic(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Write ``data`` to a temporary file next to ``path``, fsync it, and rename it to ``path``. Creates the folder."""
    with atomic_target(path) as temporary:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(data)


def write_unflushed(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Write as ``write_atomic`` does, but without fsync: for files that are useless after the machine is switched off.

    A crash of any process leaves the old file or the new one; a power failure may leave neither.
    """
    make_folder(path.parent)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.part")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(data)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_reports(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write reproducible files, by path relative to ``folder``: each completely or not at all, but without fsync."""
    for name, data in files.items():
        write_unflushed(folder / name, data)


@contextmanager
def atomic_target(path: Path) -> Iterator[Path]:
    """Yield a temporary path next to ``path``; it becomes ``path`` when the block ends without error."""
    make_folder(path.parent)
    temporary = path.parent / f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.part"
    try:
        yield temporary
        with temporary.open("rb") as stream:
            os.fsync(stream.fileno())
        temporary.replace(path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        if error.filename is None or str(error.filename) == str(temporary):
            error.filename = str(path)  # report this name to callers
        raise
    finally:
        temporary.unlink(missing_ok=True)


def write_json_atomic(path: Path, value: object, mode: int = 0o644) -> None:
    """Write indented JSON atomically, with words for floats that JSON lacks."""
    write_atomic(path, _json_bytes(value), mode)


def write_json_unflushed(path: Path, value: object, mode: int = 0o644) -> None:
    """Write indented JSON as ``write_unflushed`` does."""
    write_unflushed(path, _json_bytes(value), mode)


def _json_bytes(value: object) -> bytes:
    return json.dumps(as_words(value), indent=2, sort_keys=True).encode() + b"\n"


def write_whole(descriptor: int, data: bytes) -> None:
    """Write all bytes to an open file, since a nearly full disk may accept only some per call."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def remove_tree(folder: Path) -> None:
    """Remove a folder and its contents, at any depth and with any names and permissions.

    Links are not followed, even if another process creates them meanwhile. Entries that cannot be removed stay, without
    an error; the next clean-up tries them again.
    """
    try:
        top = os.open(folder, _FOLDER)
    except FileNotFoundError:
        return
    except OSError:  # a file, a link, or nothing that this user may read
        _quietly(partial(os.unlink, folder))
        return
    try:
        _empty(top)
    finally:
        os.close(top)
    _quietly(partial(os.rmdir, folder))


def _empty(top: int) -> None:
    """Remove the contents of an open folder."""
    # Each folder is first moved to the top, so that no path gets too long and no recursion is needed.
    waiting, count, prefix = _clear(top), 0, f".gone-{secrets.token_hex(6)}"
    while waiting:
        name = waiting.pop()
        with contextlib.suppress(OSError):
            here = _enter(name, top)
            try:
                for entry in _clear(here):
                    count += 1
                    moved = f"{prefix}-{count}"
                    with contextlib.suppress(OSError):
                        _move(entry, here, moved, top)
                        waiting.append(moved)
            finally:
                os.close(here)
            os.rmdir(name, dir_fd=top)


def _clear(folder: int) -> list[str]:
    """Remove the files of an open folder; return the folders in it."""
    inner = []
    for entry, is_folder in _entries_of(folder):
        if is_folder:
            inner.append(entry)
        else:
            _quietly(partial(os.unlink, entry, dir_fd=folder))
    return inner


def _entries_of(folder: int) -> list[tuple[str, bool]]:
    with os.scandir(folder) as entries:
        return [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]


def _enter(name: str, folder: int) -> int:
    """Open a folder, and permit the removal of its files."""
    try:
        here = os.open(name, _FOLDER, dir_fd=folder)
    except PermissionError:
        _unprotect(name, folder)
        return os.open(name, _FOLDER, dir_fd=folder)
    if os.fstat(here).st_mode & PRIVATE != PRIVATE:
        _quietly(partial(os.fchmod, here, PRIVATE))
    return here


def _move(name: str, folder: int, moved: str, top: int) -> None:
    """Move a folder, which needs write permission in it."""
    try:
        os.rename(name, moved, src_dir_fd=folder, dst_dir_fd=top)
    except PermissionError:
        _unprotect(name, folder)
        os.rename(name, moved, src_dir_fd=folder, dst_dir_fd=top)


def _unprotect(name: str, folder: int) -> None:
    """Let this user into a folder. ``os.chmod`` would follow a link that has just taken its place."""
    descriptor = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        os.chmod(f"/proc/self/fd/{descriptor}", PRIVATE)
    finally:
        os.close(descriptor)


def _quietly(act: Callable[[], object]) -> None:
    with contextlib.suppress(OSError):
        act()


def sha256_of(data: bytes) -> str:
    """Return the hexadecimal SHA-256."""
    return hashlib.sha256(data).hexdigest()


def sha256_of_file(path: Path) -> str:
    """Return the hexadecimal SHA-256 of a file's content, read in blocks."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
