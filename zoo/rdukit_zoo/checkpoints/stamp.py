"""Identities in checkpoint files: read them, or write them into files without one if names and shapes match."""

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from rdukit.errors import InvalidArgument, NotFound
from rdukit.files.atomic import atomic_target, sha256_of_file, write_json_atomic
from rdukit.pef.checkpoint_files import (
    ADAPTER_PARTS,
    LATEST,
    CheckpointHeader,
    read_header,
    read_identity,
    read_pointers,
)
from rdukit.pef.identity import ModelIdentity, metadata_of, require_same
from rdukit_zoo.registry import ModelEntry, Sizes


def checkpoint_files(path: Path) -> list[Path]:
    """Return a file itself, or the files that a box's folder names, the newest first.

    Raises:
        NotFound: there is none. InvalidArgument: a pointer is damaged.
    """
    if path.is_file():
        return [path]
    if not (path / LATEST).is_file():
        raise NotFound(f"there is no checkpoint {path}; expected a safetensors file, or a folder that train made")
    return list(
        dict.fromkeys(path / Path(str(named["file"])).name for _, each in read_pointers(path) for named in each)
    )


def find_identity(path: Path) -> ModelIdentity | None:
    """Return the identity in a checkpoint; None if it has none, or is not such a file.

    Raises:
        InvalidArgument: the identity is damaged.
    """
    if path.is_dir() and not (path / LATEST).is_file():
        return None
    return read_identity(path)


def identity_said(header: CheckpointHeader, entry: ModelEntry) -> ModelIdentity | None:
    """Return the identity in a header, or that of the sizes that an earlier version recorded.

    Raises:
        InvalidArgument: these are not sizes of the model ``entry``.
    """
    return header.identity or (entry.identity(header.trained_sizes) if header.trained_sizes else None)


def trained_sizes(path: Path) -> Sizes:
    """Return the sizes that a box of an earlier version recorded with the position of its training; empty: none."""
    return dict(read_header(checkpoint_files(path)[0]).trained_sizes)


def stamp_checkpoint(path: Path, entry: ModelEntry, sizes: Sizes, identity: ModelIdentity) -> list[Path]:
    """Write ``identity`` into each file of a checkpoint, and return the files; tensors do not change.

    Raises:
        NotFound: there is no checkpoint.
        InvalidArgument: names or shapes are not those of the model of these sizes, or a file has another identity.
    """
    with torch.device("meta"):
        wanted = {name: tuple(tensor.shape) for name, tensor in entry.build(**sizes).state_dict().items()}
    files = checkpoint_files(path)
    for file in files:
        header = read_header(file)
        said = identity_said(header, entry)
        if said is not None:
            require_same(
                said, identity, f"the checkpoint {file.name}", "the options",
                "give the checkpoint's sizes",
            )  # fmt: skip
        _check_shapes(file, header.shapes, wanted)
        tensors = _tensors(file)
        with atomic_target(file) as temporary:
            save_file(tensors, temporary, metadata={**header.metadata, **metadata_of(identity)})
    if path.is_dir():
        for pointer, each in read_pointers(path):
            for named in each:
                named["sha256"] = sha256_of_file(path / Path(str(named["file"])).name)
            write_json_atomic(path / pointer, each[0])
    return files


def _check_shapes(
    file: Path, shapes: Mapping[str, tuple[int, ...]], wanted: Mapping[str, tuple[int, ...]]
) -> None:  # fmt: skip
    found = {name: shape for name, shape in shapes.items() if not name.endswith(ADAPTER_PARTS)}
    missing, unused = sorted(wanted.keys() - found.keys()), sorted(found.keys() - wanted.keys())
    wrong = [
        f"{name} {found[name]} instead of {wanted[name]}"
        for name in wanted
        if found.get(name, wanted[name]) != wanted[name]
    ]
    if missing or unused or wrong:
        told = [f"{word} {', '.join(names[:5])}" for word, names in
                (("missing", missing), ("unused", unused), ("of another shape", wrong)) if names]  # fmt: skip
        raise InvalidArgument(f"{file} does not fit this model with these sizes: {'; '.join(told)}")


def _tensors(file: Path) -> dict[str, torch.Tensor]:
    try:
        with safe_open(file, framework="pt") as stream:
            return {name: stream.get_tensor(name) for name in stream.keys()}  # noqa: SIM118  (the stream is no mapping)
    except (SafetensorError, OSError) as cause:
        raise InvalidArgument(f"{file} is not a safetensors file, or is damaged; expected an intact one") from cause
