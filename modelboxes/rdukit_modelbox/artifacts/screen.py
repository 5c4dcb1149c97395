"""Screening of inputs: refuse pickles, links that lead outside, and archive bombs."""

import os
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from rdukit.errors import InvalidArgument
from rdukit_modelbox.artifacts.unpack import UnpackLimits, check_zip

PICKLE_SUFFIXES: Final = (".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".joblib")


def screen(path: Path, what: str, roots: Sequence[Path], limits: UnpackLimits) -> None:
    """Screen a file, or all files of a folder.

    Raises:
        InvalidArgument: a pickle; a link out of ``roots`` (resolved folders); a zip or npz that unpacks to too much;
            a pipe, socket or device.
    """
    for file in _files(path, what, roots):
        with file.open("rb") as stream:
            head = stream.read(4)
        suffix = file.suffix.lower()
        if suffix in PICKLE_SUFFIXES or _is_pickle(file, head):
            raise InvalidArgument(
                f"{what}: {file.name} is a pickle, which can run any program when read; expected safetensors; convert "
                "it on a machine that may run it: rdukit box convert FILE.pt -o FILE.safetensors"
            )
        if suffix == ".npz":
            check_zip(file, limits)


def _files(path: Path, what: str, roots: Sequence[Path]) -> Iterator[Path]:
    _check_inside(path, what, roots)
    if path.is_file():
        yield path
        return
    for folder, folders, files in os.walk(path):
        for name in (*folders, *files):
            entry = Path(folder, name)
            if entry.is_symlink():
                _check_inside(entry, what, roots)
        for name in files:
            entry = Path(folder, name)
            if not entry.is_file():
                raise InvalidArgument(f"{what}: {entry} is neither a file nor a folder; remove it")
            yield entry


def _check_inside(path: Path, what: str, roots: Sequence[Path]) -> None:
    target = path.resolve()
    if not any(target == root or root in target.parents for root in roots):
        raise InvalidArgument(
            f"{what}: {path} leads to {target}, outside this box's mounts; expected a path inside them"
        )


def _is_pickle(path: Path, head: bytes) -> bool:
    """Return whether a file's content is a pickle of protocol 2 to 5, or torch's zip with one."""
    if head[:1] == b"\x80" and head[1:2] in {b"\x02", b"\x03", b"\x04", b"\x05"}:
        with path.open("rb") as stream:
            stream.seek(-1, os.SEEK_END)
            return stream.read(1) == b"."
    if head == b"PK\x03\x04" and path.suffix.lower() != ".npz":
        try:
            with zipfile.ZipFile(path) as archive:
                return any(name.endswith(("/data.pkl", ".pkl")) for name in archive.namelist())
        except (zipfile.BadZipFile, OSError):
            return False
    return False
