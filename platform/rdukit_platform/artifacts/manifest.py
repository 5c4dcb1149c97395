"""A folder as content: the JSON ``{"files": [{"path", "digest", "bytes"}]}``, sorted by path.

Programs also have ``"executable": true``, and ``"folders": [path, …]`` lists empty folders. Both keys are omitted if
not needed, so equal folders have equal manifests.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from rdukit.errors import ContentDamaged, InvalidArgument
from rdukit.files.tree import is_utf8

#: Largest number of an artifact's files, and of its empty folders.
MAX_FILES: Final = 60_000
#: Largest length in bytes of a file's name, and of a path inside a folder.
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
    """A folder: its files, and its empty folders, each sorted by path."""

    files: tuple[FolderEntry, ...]
    folders: tuple[str, ...] = ()

    @property
    def bytes(self) -> int:
        """Return the bytes of all its files."""
        return sum(file.bytes for file in self.files)


def make_manifest(files: Sequence[FolderEntry], folders: Sequence[str] = ()) -> FolderManifest:
    """Return the manifest of a folder's files and empty folders, given in any order.

    Raises:
        InvalidArgument: a path is invalid, or a file system cannot hold all paths together.
    """
    check_paths([check_relative(file.path) for file in files], [check_relative(path) for path in folders])
    return FolderManifest(tuple(sorted(files, key=lambda file: file.path)), tuple(sorted(folders)))


def write_manifest(manifest: FolderManifest) -> bytes:
    """Return a manifest as JSON; equal manifests give equal bytes."""
    files = [_describe(file) for file in manifest.files]
    found: dict[str, object] = {"files": files} | ({"folders": list(manifest.folders)} if manifest.folders else {})
    return json.dumps(found, sort_keys=True, separators=(",", ":")).encode()


def read_manifest(data: bytes) -> FolderManifest:
    """Parse a manifest.

    Raises:
        ContentDamaged: the data is not a manifest.
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
        folders: paths of empty folders.
    Raises:
        InvalidArgument: two paths are equal, or one lies inside a file or an empty folder.
    """
    known = dict.fromkeys(folders, "an empty folder") | dict.fromkeys(files, "a file")
    if len(known) != len(files) + len(folders):
        raise InvalidArgument("two files of the folder have the same path")
    for path in known:
        parent = path.rpartition("/")[0]
        while parent:
            if parent in known:
                raise InvalidArgument(f"{parent!r} is {known[parent]} of the folder, so {path!r} cannot be inside it")
            parent = parent.rpartition("/")[0]


def check_relative(text: str) -> str:
    """Return ``text`` if it is a plain relative path with forward slashes.

    Raises:
        InvalidArgument: it is absolute, empty, not UTF-8, or would leave its folder.
    """
    parts = text.split("/")
    if not text or "\0" in text or "\\" in text or text.startswith("/"):
        raise InvalidArgument(f"{text!r} is not a valid path inside a folder; expected plain relative paths without \\")
    if any(part in {"", ".", ".."} for part in parts):
        raise InvalidArgument(f"{text!r} leaves its folder or has empty parts; expected plain relative paths")
    if not is_utf8(text):
        raise InvalidArgument(f"the name {text!r} is not UTF-8; rename it")
    return text


def check_lengths(paths: Iterable[str]) -> None:
    """Refuse paths that are too long for file systems, because the folder could not be restored.

    Raises:
        InvalidArgument: a path is too long; the message names it.
    """
    for path in paths:
        if len(path.encode()) > MAX_PATH_BYTES or any(len(part.encode()) > MAX_NAME_BYTES for part in path.split("/")):
            raise InvalidArgument(
                f"the name {path[:80]!r}… has {len(path.encode())} bytes; expected up to "
                f"{MAX_NAME_BYTES} for a file or "
                f"folder, {MAX_PATH_BYTES} for a path"
            )


def _describe(file: FolderEntry) -> dict[str, Any]:
    return {name: value for name, value in asdict(file).items() if name != "executable" or value}
