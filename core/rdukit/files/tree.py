"""Contents of a folder that can be stored and restored: files, executable bits, empty folders.

All other entries (links, pipes, devices, names that are not UTF-8) are refused by name before any file is read. Times,
owners and other permissions are not part of a tree.
"""

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rdukit.errors import InvalidArgument, NotFound

#: The owner's permission to execute a file; a restored file gives it to everybody who may read the file.
RUNNABLE: Final = stat.S_IXUSR


@dataclass(frozen=True, slots=True)
class TreeFile:
    """A file of a tree. ``name``: its path in the tree, with forward slashes."""

    path: Path
    name: str
    is_executable: bool = False


@dataclass(frozen=True, slots=True)
class Tree:
    """Files and empty folders of a folder, each sorted by its path in it."""

    files: tuple[TreeFile, ...]
    empty_folders: tuple[str, ...] = ()


def read_tree(folder: Path) -> Tree:
    """Return the contents of a folder, at any depth.

    Raises:
        InvalidArgument: an entry is neither a file nor a folder, or its name is not UTF-8.
        NotFound: there is no such folder.
    """
    files: list[TreeFile] = []
    empty: list[str] = []
    waiting = [(folder, "")]
    while waiting:
        place, prefix = waiting.pop()
        found = list(_entries(place))
        if not found and prefix:
            empty.append(prefix.rstrip("/"))
        for entry in found:
            name, path = prefix + entry.name, place / entry.name
            state = entry.stat(follow_symlinks=False)
            check_kind(path, state.st_mode)
            if stat.S_ISDIR(state.st_mode):
                waiting.append((path, name + "/"))
            else:
                files.append(TreeFile(path, name, bool(state.st_mode & RUNNABLE)))
    return Tree(tuple(sorted(files, key=lambda file: file.name)), tuple(sorted(empty)))


def check_kind(path: Path, mode: int) -> None:
    """Refuse an entry that is neither a file nor a folder, or whose name is not UTF-8; ``mode`` comes from ``lstat``.

    Raises:
        InvalidArgument: the entry is refused.
    """
    if not is_utf8(str(path)):
        raise InvalidArgument(f"the name {str(path)!r} is not UTF-8; rename it")
    if stat.S_ISLNK(mode):
        raise InvalidArgument(f"{str(path)!r} is a link, and links are not stored; put what it points to in its place")
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise InvalidArgument(f"{str(path)!r} is neither a file nor a folder, so it cannot be stored; remove it")


def is_utf8(text: str) -> bool:
    """Return whether a file's name can be encoded as UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def make_executable(path: Path) -> None:
    """Make a file executable for everybody who may read it."""
    mode = stat.S_IMODE(path.stat().st_mode)
    path.chmod(mode | (mode & 0o444) >> 2)


def _entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            yield from entries
    except FileNotFoundError as cause:
        raise NotFound(f"{folder} does not exist") from cause
