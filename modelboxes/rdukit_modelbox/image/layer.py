"""One layer of an image: files as a tar whose bytes depend only on names, contents and the build's time."""

import io
import shutil
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from rdukit.errors import InvalidArgument


@dataclass(frozen=True, slots=True)
class LayerEntry:
    """A file, folder or symbolic link of a layer.

    A file has ``data`` or ``source`` (its bytes or its path), a link has ``target``, and a folder has none of them.
    """

    #: Absolute path in the image.
    path: str
    data: bytes | None = None
    source: Path | None = None
    target: str | None = None
    is_executable: bool = False
    #: Owner and group.
    user: int = 0
    #: Mode, if not 0755 for folders and executables, or 0644 for other files.
    mode: int | None = None

    @property
    def is_folder(self) -> bool:
        """Return whether the entry is neither a file nor a link."""
        return self.data is None and self.source is None and self.target is None


def write_layer(entries: Iterable[LayerEntry], stream: BinaryIO, seconds: int) -> None:
    """Write ``entries`` as a tar, sorted by path, with the folders above them, all dated ``seconds``.

    Raises:
        InvalidArgument: a path is not absolute, has ``..``, or is there twice with other content.
    """
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for entry in with_folders(entries):
            _add(tar, entry, seconds)


def with_folders(entries: Iterable[LayerEntry]) -> Iterator[LayerEntry]:
    """Yield the entries sorted by path, each after its parent folders."""
    known: dict[str, LayerEntry] = {}
    for entry in entries:
        path = _checked_path(entry.path)
        old = known.get(path)
        if old is not None and old != replace(entry, path=path):
            raise InvalidArgument(f"{path} occurs twice in one layer, with different content")
        known[path] = replace(entry, path=path)
    for path in list(known):
        while path := path.rpartition("/")[0]:
            known.setdefault(path, LayerEntry(path))
    yield from (known[path] for path in sorted(known))


def _checked_path(path: str) -> str:
    parts = path.split("/")
    if not path.startswith("/") or {"", ".", ".."} & set(parts[1:]):
        raise InvalidArgument(
            f"path {path!r} in a layer is not valid; expected absolute and without empty, . or .. parts"
        )
    return path


def _add(tar: tarfile.TarFile, entry: LayerEntry, seconds: int) -> None:
    info = tarfile.TarInfo(entry.path[1:])
    info.mtime, info.uid, info.gid = seconds, entry.user, entry.user
    info.mode = entry.mode if entry.mode is not None else 0o755 if entry.is_folder or entry.is_executable else 0o644
    if entry.is_folder:
        info.type = tarfile.DIRTYPE
        tar.addfile(info)
    elif entry.target is not None:
        info.type, info.linkname, info.mode = tarfile.SYMTYPE, entry.target, 0o777
        tar.addfile(info)
    elif entry.data is not None:
        info.size = len(entry.data)
        tar.addfile(info, io.BytesIO(entry.data))
    else:
        assert entry.source is not None
        with entry.source.open("rb") as stream:
            stream.seek(0, io.SEEK_END)
            info.size = stream.tell()
            stream.seek(0)
            tar.addfile(info, stream)


def unpack_file(stream: BinaryIO, path: str) -> bytes | None:
    """Return the content of the file ``path`` in a layer's tar; None if it is missing."""
    with tarfile.open(fileobj=stream, mode="r|*") as tar:
        for member in tar:
            if "/" + member.name.removeprefix("./").lstrip("/") == path and member.isfile():
                found = tar.extractfile(member)
                assert found is not None
                content = io.BytesIO()
                shutil.copyfileobj(found, content)
                return content.getvalue()
    return None
