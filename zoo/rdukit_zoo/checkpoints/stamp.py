"""Identities in files of checkpoints: read, and written into files that lack one, after names and shapes agree."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from rdukit.errors import InvalidArgument, NotFound
from rdukit.files.atomic import atomic_target, sha256_of_file, write_json_atomic
from rdukit.pef.identity import ModelIdentity, identity_in, metadata_of, require_same
from rdukit_zoo.registry import ModelEntry, Sizes

#: How a box's folder names its files, and how a file of its marks parameters.
LATEST: Final = "latest.json"
POINTERS: Final = (LATEST, "best.json")
PREFIX: Final = "parameter/"
#: Updates of low rank that a checkpoint may have beside the model's own tensors.
_ADAPTERS: Final = (".lora_A", ".lora_B", ".lora_scale")


def checkpoint_files(path: Path) -> list[Path]:
    """Return a file itself, or the files that a box's folder names, the newest first.

    Raises:
        NotFound: there is none. InvalidArgument: what names them is damaged.
    """
    if path.is_file():
        return [path]
    if not (path / LATEST).is_file():
        raise NotFound(f"there is no checkpoint {path}; legal: a safetensors file, or a folder that train made")
    return list(dict.fromkeys(path / Path(str(named["file"])).name for _, each in _pointers(path) for named in each))


def find_identity(path: Path) -> ModelIdentity | None:
    """Return the model that a checkpoint says it is of; None where it does not, or is no such file.

    Raises:
        InvalidArgument: what it says is damaged.
    """
    if path.is_dir() and not (path / LATEST).is_file():
        return None
    return identity_in(_metadata(checkpoint_files(path)[0]))


def trained_sizes(path: Path) -> Sizes:
    """Return the sizes that a box of an earlier version wrote beside the position of its training; empty: none."""
    try:
        sizes = json.loads(_metadata(checkpoint_files(path)[0]).get("rdukit", "{}")).get("identity", {}).get("sizes")
    except (ValueError, AttributeError) as cause:
        raise InvalidArgument(f"{path} is damaged: {cause!r}") from cause
    return dict(sizes or {})


def stamp_checkpoint(path: Path, entry: ModelEntry, sizes: Sizes, identity: ModelIdentity) -> list[Path]:
    """Write ``identity`` into each file of a checkpoint, and return them; tensors stay as they are.

    Raises:
        NotFound: there is no checkpoint.
        InvalidArgument: names or shapes are not those of the model of these sizes, or a file says another identity.
    """
    with torch.device("meta"):
        wanted = {name: tuple(tensor.shape) for name, tensor in entry.build(**sizes).state_dict().items()}
    files = checkpoint_files(path)
    for file in files:
        metadata, tensors = _metadata(file), _tensors(file)
        said = identity_in(metadata)
        if said is not None:
            require_same(
                said, identity, f"the checkpoint {file.name}", "the options", "give the sizes that the checkpoint says"
            )
        _check_shapes(file, tensors, wanted)
        with atomic_target(file) as temporary:
            save_file(tensors, temporary, metadata={**metadata, **metadata_of(identity)})
    if path.is_dir():
        for pointer, each in _pointers(path):
            for named in each:
                named["sha256"] = sha256_of_file(path / Path(str(named["file"])).name)
            write_json_atomic(path / pointer, each[0])
    return files


def _check_shapes(file: Path, tensors: Mapping[str, torch.Tensor], wanted: Mapping[str, tuple[int, ...]]) -> None:
    ours = {name.removeprefix(PREFIX): t for name, t in tensors.items() if name.startswith(PREFIX)} or dict(tensors)
    found = {name: tuple(t.shape) for name, t in ours.items() if not name.endswith(_ADAPTERS)}
    missing, unused = sorted(wanted.keys() - found.keys()), sorted(found.keys() - wanted.keys())
    wrong = [
        f"{name} {found[name]} instead of {wanted[name]}"
        for name in wanted
        if found.get(name, wanted[name]) != wanted[name]
    ]
    if missing or unused or wrong:
        told = [f"{word} {', '.join(names[:5])}" for word, names in
                (("missing", missing), ("unused", unused), ("of another shape", wrong)) if names]  # fmt: skip
        raise InvalidArgument(f"{file} is not of this model with these sizes: {'; '.join(told)}")


def _pointers(folder: Path) -> list[tuple[str, list[dict[str, Any]]]]:
    """Return each pointer of a folder by name: what it says, and then what it says of the file before."""
    found = []
    for name in POINTERS:
        if (folder / name).is_file():
            try:
                value = json.loads((folder / name).read_text())
                before = value.get("previous")
                named = [
                    value,
                    *([before] if isinstance(before, dict) and (folder / str(before["file"])).is_file() else []),
                ]
                found.append((name, [each for each in named if each["file"]]))
            except (ValueError, KeyError, TypeError, AttributeError) as cause:
                raise InvalidArgument(f"{folder / name} is damaged: {cause!r}") from cause
    return found


def _metadata(file: Path) -> dict[str, str]:
    try:
        with safe_open(file, framework="pt") as stream:
            return dict(stream.metadata() or {})
    except (SafetensorError, OSError) as cause:
        raise InvalidArgument(f"{file} is no safetensors file, or damaged: {cause}") from cause


def _tensors(file: Path) -> dict[str, torch.Tensor]:
    with safe_open(file, framework="pt") as stream:
        return {name: stream.get_tensor(name) for name in stream.keys()}  # noqa: SIM118  (the stream is no mapping)
