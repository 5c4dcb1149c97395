"""Paths in requests → paths on this machine, kept under the mounted folders. No path outside them is ever opened."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

from rdukit.errors import InvalidArgument, NotFound
from rdukit_modelbox.box import Box, Verb


class Mounts:
    """The folders whose files a box may read and write. Relative paths start at the first."""

    def __init__(self, folders: Sequence[Path]) -> None:
        """``folders`` must exist; at least one.

        Raises:
            InvalidArgument: none given, or one is not a folder.
        """
        if not folders:
            raise InvalidArgument("a box needs at least one mounted folder")
        for folder in folders:
            if not folder.is_dir():
                raise InvalidArgument(f"mount {folder} is not a folder")
        self.folders = tuple(folder.resolve() for folder in folders)

    def resolve(self, text: str, what: str) -> Path:
        """The path that ``text`` (a path or ``file://`` URI) means, links resolved; it need not exist.

        Raises:
            InvalidArgument: another scheme, or outside the mounts.
        """
        if not text or "\0" in text:
            raise InvalidArgument(f"{what}: {text!r} is not a path")
        parts = urlsplit(text)
        if parts.scheme == "file" and parts.netloc in {"", "localhost"}:
            text = unquote(parts.path)
        elif "://" in text:
            raise InvalidArgument(f"{what}: {text!r} is not legal; legal: a path or file:///PATH on the box's machine")
        path = (self.folders[0] / text).resolve()
        if not any(path == folder or folder in path.parents for folder in self.folders):
            raise InvalidArgument(
                f"{what}: {path} is outside this box's mounts; legal: under {', '.join(map(str, self.folders))}"
            )
        return path


def resolve_inputs(mounts: Mounts, box: Box, verb: Verb, given: Mapping[str, str]) -> dict[str, Path]:
    """The input slots of ``verb`` as existing paths.

    Raises:
        InvalidArgument: an unknown slot, a required one that is missing, a path outside the mounts, or a file where a
            folder belongs or the other way round.
        NotFound: nothing at the path.
    """
    slots = {slot.name: slot for slot in box.slots_of(verb).inputs}
    for name in given:
        if name not in slots:
            raise InvalidArgument(f"{box.name} {verb} has no input {name!r}; legal: {', '.join(slots) or 'none'}")
    missing = [name for name, slot in slots.items() if slot.required and name not in given]
    if missing:
        raise InvalidArgument(f"{box.name} {verb} needs the inputs {', '.join(missing)}", missing=missing)
    paths: dict[str, Path] = {}
    for name, text in given.items():
        path = mounts.resolve(text, f"input {name!r}")
        if not path.exists():
            raise NotFound(f"input {name!r}: there is nothing at {path}")
        if slots[name].kind != "any" and path.is_dir() != (slots[name].kind == "folder"):
            raise InvalidArgument(f"input {name!r}: {path} must be a {slots[name].kind}")
        paths[name] = path
    return paths
