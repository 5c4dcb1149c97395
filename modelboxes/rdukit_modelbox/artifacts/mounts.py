"""Convert paths in requests to paths on this machine, below the mounted folders only.

Inputs may also be remote URIs. The child that runs the verb fetches them into the first folder; here they only get
their future path.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from rdukit.errors import InvalidArgument, NotFound, RdukitError
from rdukit_modelbox.artifacts.reference import REMOTE_SCHEMES, is_remote, parse_fragment, parse_reference
from rdukit_modelbox.contract.box import ArtifactSlot, Box, Verb

#: Folder of fetched artifacts in the first mount.
ARTIFACTS: Final = "artifacts"


class Mounts:
    """The folders whose files a box may read and write. Relative paths start at the first."""

    def __init__(self, folders: Sequence[Path]) -> None:
        """``folders`` must be a non-empty sequence of existing folders.

        Raises:
            InvalidArgument: there are no folders, or one is not a folder.
        """
        if not folders:
            raise InvalidArgument("a box needs at least one mounted folder")
        for folder in folders:
            if not folder.is_dir():
                raise InvalidArgument(f"mount {folder} is not a folder")
        self.folders = tuple(folder.resolve() for folder in folders)

    @property
    def artifacts(self) -> Path:
        """Return the folder in which fetched artifacts are kept; it need not exist."""
        return self.folders[0] / ARTIFACTS

    def resolve(self, text: str, what: str) -> Path:
        """Return the absolute path for ``text`` (a path or ``file://`` URI), links resolved; it need not exist.

        Raises:
            InvalidArgument: another scheme, or outside the mounts.
        """
        if not text or "\0" in text:
            raise InvalidArgument(f"{what}: {text!r} is not a path")
        parts = urlsplit(text)
        if parts.scheme == "file" and parts.netloc in {"", "localhost"}:
            text = unquote(parts.path)
        elif "://" in text:
            raise InvalidArgument(
                f"{what}: {text!r} is not valid; expected a path or file:///PATH on the box's machine"
            )
        try:
            path = (self.folders[0] / text).resolve()
            path.exists()
        except OSError as cause:  # the name or path is too long
            raise InvalidArgument(f"{what}: {text[:80]!r}… is not a path: {cause.strerror}") from cause
        if not any(path == folder or folder in path.parents for folder in self.folders):
            folders = ", ".join(map(str, self.folders))
            raise InvalidArgument(f"{what}: {path} is outside this box's mounts; expected a path under {folders}")
        return path

    def resolve_output(self, text: str) -> Path:
        """Return the output folder for ``text``; never one that keeps fetched artifacts.

        Raises:
            InvalidArgument: another scheme, outside the mounts, or among the fetched artifacts.
        """
        path = self.resolve(text, "output")
        if path == self.artifacts or self.artifacts in path.parents:
            raise InvalidArgument(f"output: {path} is among the fetched artifacts; expected another folder")
        return path


@dataclass(frozen=True, slots=True)
class Exchange:
    """The child's work on the inputs before the verb, and on the outputs after it."""

    #: URI to fetch, by slot.
    remote: Mapping[str, str] = field(default_factory=dict)
    #: Slot → SHA-256 that a local file must have.
    digests: Mapping[str, str] = field(default_factory=dict)
    #: Slot → ``file``, ``folder`` or ``any``.
    kinds: Mapping[str, str] = field(default_factory=dict)
    #: Folders that links must not lead out of.
    roots: tuple[str, ...] = ()
    #: Where fetched artifacts are kept.
    store: str = ""
    #: ``s3://`` prefix for the outputs; empty: they stay here.
    upload: str = ""


def mount_points(box: Box) -> list[Path]:
    """Return the mount points of the box's artifacts that are folders on this machine."""
    slots = [slot for verb in box.verbs for side in ("inputs", "outputs") for slot in getattr(box.slots_of(verb), side)]
    paths = [Path(slot.mount) for slot in slots if slot.mount is not None]
    return [path for path in dict.fromkeys(paths) if path.is_dir()]


def resolve_inputs(mounts: Mounts, box: Box, verb: Verb, given: Mapping[str, str]) -> dict[str, Path]:
    """Return the input slots of ``verb`` as existing paths, or as the future paths of remote ones.

    A slot missing in the request is the content of its mount point, if any.

    Raises:
        InvalidArgument: an unknown slot, a missing required one, a path outside the mounts, a file instead of a folder
            or a folder instead of a file, a malformed URI, or a scheme that the slot refuses.
        NotFound: nothing at the path.
    """
    slots = {slot.name: slot for slot in box.slots_of(verb).inputs}
    for name in given:
        if name not in slots:
            raise InvalidArgument(
                f"{box.name} {verb} has no input {name!r}; expected {', '.join(slots) or 'none'}", input=name
            )
    given = {**{name: text for name, slot in slots.items() if (text := _find_mounted(slot))}, **given}
    missing = [name for name, slot in slots.items() if slot.required and name not in given]
    if missing:
        words = f"{box.name} {verb} needs the inputs {', '.join(missing)}"
        raise InvalidArgument(words, missing=missing, input=missing[0])
    return {name: _resolve_input(mounts, slots[name], text) for name, text in given.items()}


def plan_exchange(mounts: Mounts, box: Box, verb: Verb, given: Mapping[str, str], upload: str = "") -> Exchange:
    """Plan the fetches, comparisons and uploads of a request that ``resolve_inputs`` accepted.

    Raises:
        InvalidArgument: a malformed URI or digest, or outputs that may not go to S3.
    """
    remote = {name: text for name, text in given.items() if is_remote(text)}
    digests = {
        name: digest
        for name, text in given.items()
        if text.startswith("file://") and (digest := parse_fragment(urlsplit(text).fragment, f"input {name!r}"))
    }
    if upload:
        for slot in box.slots_of(verb).outputs:
            if slot.schemes is not None and "s3" not in slot.schemes:
                legal = ", ".join(slot.schemes)
                raise InvalidArgument(f"output: {slot.name} of {box.name} {verb} cannot go to s3; expected {legal}")
    return Exchange(
        remote, digests, {slot.name: slot.kind for slot in box.slots_of(verb).inputs},
        tuple(map(str, mounts.folders)), str(mounts.artifacts), upload,
    )  # fmt: skip


def _resolve_input(mounts: Mounts, slot: ArtifactSlot, text: str) -> Path:
    try:
        return _resolve_slot(mounts, slot, text)
    except RdukitError as error:
        error.detail.setdefault("input", slot.name)
        raise


def _resolve_slot(mounts: Mounts, slot: ArtifactSlot, text: str) -> Path:
    what = f"input {slot.name!r}"
    scheme = text.partition("://")[0] if "://" in text else "file"
    legal = slot.schemes or ("file", *REMOTE_SCHEMES)
    if scheme not in legal:
        raise InvalidArgument(f"{what}: scheme {scheme!r} is not valid; expected {', '.join(legal)}")
    if is_remote(text):
        return mounts.artifacts / "by-uri" / parse_reference(text, what).key
    if slot.mount is not None and "://" not in text and not text.startswith("/") and Path(slot.mount).is_dir():
        text = f"{slot.mount}/{text}"
    path = mounts.resolve(text, what)
    if not path.exists():
        raise NotFound(f"{what}: {path} does not exist")
    if slot.kind != "any" and path.is_dir() != (slot.kind == "folder"):
        raise InvalidArgument(f"{what}: {path} must be a {slot.kind}")
    return path


def _find_mounted(slot: ArtifactSlot) -> str | None:
    """Return a slot's mounted path: the folder, or the only file in it."""
    if slot.mount is None or not Path(slot.mount).is_dir():
        return None
    found = [path for path in sorted(Path(slot.mount).iterdir()) if not path.name.startswith(".")]
    if slot.kind == "folder" or (slot.kind == "any" and len(found) > 1):
        return slot.mount if found else None
    return str(found[0]) if len(found) == 1 else None
