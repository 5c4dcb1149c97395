"""A folder as content: the JSON ``{"files": [{"path", "digest", "bytes"}]}``, sorted by path.

A program has ``"executable": true`` beside these, and a folder with empty ones in it ``"folders": [path, …]`` beside
the files; both are left out where there are none. A folder is the same content wherever it was made.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from rdukit.errors import ContentDamaged, InvalidArgument
from rdukit.files.tree import is_utf8

#: Files of an artifact that is sent, and empty folders in it.
MAX_FILES: Final = 60_000
#: Bytes that a file system takes for a file's name; and for a path in a folder, which itself lies somewhere.
MAX_NAME_BYTES: Final = 255
MAX_PATH_BYTES: Final = 3072


@dataclass(frozen=True, slots=True)
class FolderEntry:
    """A file of a folder. ``path`` is relative, with forward slashes."""

    path: str
    digest: str
    bytes: int
    executable: bool = False


@dataclass(frozen=True, slots=True)
class FolderManifest:
    """A folder: its files, and the folders in it that have nothing inside, each sorted by path."""

    files: tuple[FolderEntry, ...]
    folders: tuple[str, ...] = ()

    @property
    def bytes(self) -> int:
        """Return the bytes of all its files."""
        return sum(file.bytes for file in self.files)


def make_manifest(files: Sequence[FolderEntry], folders: Sequence[str] = ()) -> FolderManifest:
    """Return the manifest of a folder's files and empty folders, which come in any order.

    Raises:
        InvalidArgument: a path is none, or no file system could have all of them.
    """
    check_paths([check_relative(file.path) for file in files], [check_relative(path) for path in folders])
    return FolderManifest(tuple(sorted(files, key=lambda file: file.path)), tuple(sorted(folders)))


def write_manifest(manifest: FolderManifest) -> bytes:
    """Return the JSON of a manifest: of equal ones the same bytes."""
    files = [_describe(file) for file in manifest.files]
    found: dict[str, object] = {"files": files} | ({"folders": list(manifest.folders)} if manifest.folders else {})
    return json.dumps(found, sort_keys=True, separators=(",", ":")).encode()


def read_manifest(data: bytes) -> FolderManifest:
    """Return the manifest of a JSON.

    Raises:
        ContentDamaged: it is none.
        InvalidArgument: a path in it would leave the folder.
    """
    try:
        found = json.loads(data)
        files = [
            FolderEntry(f["path"], f["digest"], int(f["bytes"]), f.get("executable") is True) for f in found["files"]
        ]
        return make_manifest(files, found.get("folders", ()))
    except (ValueError, KeyError, TypeError, AttributeError) as cause:
        raise ContentDamaged("the content is not a folder's manifest") from cause


def check_paths(files: Sequence[str], folders: Sequence[str] = ()) -> None:
    """Refuse the paths of a folder that no file system could hold together.

    Args:
        folders: paths of folders that have nothing inside.
    Raises:
        InvalidArgument: two are equal, or one lies inside another that is a file or an empty folder.
    """
    known = dict.fromkeys(folders, "an empty folder") | dict.fromkeys(files, "a file")
    if len(known) != len(files) + len(folders):
        raise InvalidArgument("two files of the folder have the same path")
    for path in known:
        parent = path.rpartition("/")[0]
        while parent:
            if parent in known:
                raise InvalidArgument(f"{parent!r} is {known[parent]} of the folder, and {path!r} would lie inside it")
            parent = parent.rpartition("/")[0]


def check_relative(text: str) -> str:
    """``text`` if it is a plain relative path with forward slashes.

    Raises:
        InvalidArgument: it is absolute, empty, not UTF-8, or would leave its folder.
    """
    parts = text.split("/")
    if not text or "\0" in text or "\\" in text or text.startswith("/"):
        raise InvalidArgument(
            f"{text!r} is not a legal path inside a folder; legal are plain relative paths without \\"
        )
    if any(part in {"", ".", ".."} for part in parts):
        raise InvalidArgument(f"{text!r} leaves its folder or has empty parts; legal are plain relative paths")
    if not is_utf8(text):
        raise InvalidArgument(f"the name {text!r} is not UTF-8; rename it")
    return text


def check_lengths(paths: Iterable[str]) -> None:
    """Refuse paths that are longer than file systems take them, so that nobody could have the folder again.

    Raises:
        InvalidArgument: one is; the message names it.
    """
    for path in paths:
        if len(path.encode()) > MAX_PATH_BYTES or any(len(part.encode()) > MAX_NAME_BYTES for part in path.split("/")):
            raise InvalidArgument(
                f"the name {path[:80]!r}… has {len(path.encode())} bytes; legal: up to {MAX_NAME_BYTES} for a file or "
                f"folder, {MAX_PATH_BYTES} for a path"
            )


def _describe(file: FolderEntry) -> dict[str, Any]:
    return {name: value for name, value in asdict(file).items() if name != "executable" or value}
