"""Checks of a box's output before anybody reads it: only files and folders, within limits.

A box writes what it likes into its folder. A link would make whoever stores the output read another file; a pipe would
make it wait for ever; a file with holes is small on the box's disk and huge in the store.
"""

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rdukit.errors import OutputRefused

#: Bytes that a file may lack on the disk: file systems that compress lack some, too.
MAX_HOLE_BYTES: Final = 1 << 30
MAX_DEPTH: Final = 100
_KINDS: Final = {
    stat.S_IFLNK: "a symbolic link", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class OutputLimits:
    """Limits of one output, all files together; None: no limit."""

    bytes: int | None = 256 << 30
    files: int | None = 1_000_000


def check_output(root: Path, path: Path, limits: OutputLimits) -> None:
    """Look through an output, a file or a folder, in the folder ``root`` that the box wrote to. It must have ended.

    Raises:
        OutputRefused: it is not in ``root``, or something in it is none of what an output may be. The message says
            what and where.
    """
    inside = _parts(root, path)
    for count in range(1, len(inside) + 1):
        here = root.joinpath(*inside[:count])
        try:
            found = here.lstat()
        except (OSError, ValueError) as cause:
            raise OutputRefused(f"output {path}: there is nothing at {here}") from cause
        _check_one(here, found, is_way=count < len(inside))
    used = files = 0
    waiting = [(path, 0)]
    while waiting:
        here, depth = waiting.pop()
        found = here.lstat()
        _check_one(here, found)
        files, used = files + 1, used + (found.st_size if stat.S_ISREG(found.st_mode) else 0)
        if limits.files is not None and files > limits.files:
            raise OutputRefused(f"output {path} has more than {limits.files} files and folders")
        if limits.bytes is not None and used > limits.bytes:
            raise OutputRefused(f"output {path} has more than {limits.bytes} bytes")
        if stat.S_ISDIR(found.st_mode):
            if depth >= MAX_DEPTH:
                raise OutputRefused(f"output {path} has folders in folders, more than {MAX_DEPTH} deep")
            waiting += [(here / name, depth + 1) for name in _names_in(here)]


def _parts(root: Path, path: Path) -> tuple[str, ...]:
    try:
        parts = path.relative_to(root).parts
    except ValueError as cause:
        raise OutputRefused(f"the box names {str(path)!r} as output; legal are paths inside {root}") from cause
    if not parts or ".." in parts or "\0" in str(path):
        raise OutputRefused(f"the box names {str(path)!r} as output; legal are paths inside {root}")
    return parts


def _names_in(folder: Path) -> list[str]:
    try:
        names = os.listdir(folder)
    except OSError as cause:
        raise OutputRefused(f"the folder {str(folder)!r} in an output cannot be read: {cause.strerror}") from cause
    for name in names:
        try:
            name.encode()
        except UnicodeEncodeError as cause:
            raise OutputRefused(f"{os.fsencode(name)!r} in the output {str(folder)!r} is no name in UTF-8") from cause
    return names


def _check_one(path: Path, found: os.stat_result, *, is_way: bool = False) -> None:
    kind = stat.S_IFMT(found.st_mode)
    if kind in _KINDS:
        raise OutputRefused(f"{str(path)!r} in the output is {_KINDS[kind]}; legal are files and folders")
    if is_way and kind != stat.S_IFDIR:
        raise OutputRefused(f"{str(path)!r} on the way to the output is no folder")
    if kind != stat.S_IFREG:
        return
    if found.st_nlink > 1:
        raise OutputRefused(f"{str(path)!r} in the output is a hard link: the file has another name, too")
    if found.st_size - found.st_blocks * 512 > MAX_HOLE_BYTES:
        raise OutputRefused(
            f"{str(path)!r} in the output has holes: {found.st_size} bytes, of which {found.st_blocks * 512} are there"
        )
