"""Files of checkpoints: the pointers in a folder that ``train`` wrote, and the header of a safetensors file. No torch.

A folder has ``latest.json``, and ``best.json`` if the training was validated; each names a file and its digest. A file
of ``train`` has parameters under ``parameter/``, and the position of the training in its metadata. Any other
safetensors file has only parameters, at step 0.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from rdukit.errors import InvalidArgument, NotFound
from rdukit.files.atomic import sha256_of_file
from rdukit.pef.identity import ModelIdentity, SizeValue, identity_in, require_same, tokenizer_digest

LATEST: Final = "latest.json"
BEST: Final = "best.json"
POINTERS: Final = (LATEST, BEST)
#: Name of a checkpoint → its pointer.
WHICH: Final = {"newest": LATEST, "previous": LATEST, "best": BEST}
#: Prefix of the names of parameters in a file of ``train``.
PREFIX: Final = "parameter/"
#: Key of a training's position in the metadata of a file.
TRAINING_KEY: Final = "rdukit"
#: Suffixes of the additional tensors of a linear layer with a low-rank update.
ADAPTER_PARTS: Final = (".lora_A", ".lora_B", ".lora_scale")
#: Name of the file with a table's preprocessing, in a data set and next to a checkpoint.
TABLE_FILE: Final = "preprocessing.json"
#: Name of the file with the preprocessing of pictures, in the same folders.
PICTURE_FILE: Final = "picture_preprocessing.json"
#: Maximum bytes of a header, as in the safetensors library.
MAX_HEADER_BYTES: Final = 100_000_000


@dataclass(frozen=True, slots=True)
class CheckpointHeader:
    """Header of a safetensors file: identity of its model, and names and shapes of its parameters."""

    metadata: Mapping[str, str]
    #: Model's name of a parameter → its shape.
    shapes: Mapping[str, tuple[int, ...]]
    #: Steps of the training that wrote it; 0 for any other file.
    step: int
    #: Prefix of the names of parameters in the file.
    prefix: str
    #: Identity of the model; None if the file lacks it.
    identity: ModelIdentity | None
    #: Sizes in a file of an earlier version; empty: none.
    trained_sizes: Mapping[str, SizeValue]


def read_header(file: Path) -> CheckpointHeader:
    """Read the header of a safetensors file, without its tensors.

    Raises:
        InvalidArgument: it is not a safetensors file, or its model's identity is damaged.
    """
    try:
        with file.open("rb") as stream:
            size = int.from_bytes(stream.read(8), "little")
            if size > MAX_HEADER_BYTES:
                raise ValueError(f"a header of {size} bytes")
            listed = json.loads(stream.read(size))
        metadata = {str(key): str(value) for key, value in listed.pop("__metadata__", {}).items()}
        training = json.loads(metadata[TRAINING_KEY]) if TRAINING_KEY in metadata else None
        step, prefix = (0, "") if training is None else (int(training["step"]), PREFIX)
        shapes = {
            name.removeprefix(prefix): tuple(map(int, about["shape"]))
            for name, about in listed.items()
            if name.startswith(prefix)
        }
        sizes = (training or {}).get("identity", {}).get("sizes", {})
        return CheckpointHeader(metadata, shapes, step, prefix, identity_in(metadata), dict(sizes))
    except InvalidArgument:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as cause:
        raise InvalidArgument(
            f"{file} is damaged, or not a checkpoint that this version can read ({cause}); expected a safetensors file"
        ) from cause


def checkpoint_file(checkpoint: Path, which: str = "newest", *, verify: bool = True) -> Path:
    """Return a file itself, or the one that a folder's pointer names.

    ``verify``: compare the digest, which reads the whole file.

    Raises:
        NotFound: file, folder or pointer is missing. InvalidArgument: the pointer or its file is damaged.
    """
    if not checkpoint.exists():
        raise NotFound(
            f"there is no checkpoint {checkpoint}; expected a safetensors file, or a folder that train wrote"
        )
    return checkpoint if checkpoint.is_file() else find_checkpoint_file(checkpoint, which, verify=verify)


def find_checkpoint_file(folder: Path, which: str, *, verify: bool = True) -> Path:
    """Find the file that a pointer names, and with ``verify`` compare its digest.

    Raises:
        NotFound: the pointer is missing. InvalidArgument: the pointer or its file is damaged.
    """
    if which not in WHICH:
        raise InvalidArgument(f"there is no checkpoint {which!r}; expected {', '.join(WHICH)}")
    pointer = WHICH[which]
    try:
        named = json.loads((folder / pointer).read_text())
        if which == "previous":
            named = named["previous"]
        path = folder / Path(str(named["file"])).name
        digest = str(named["sha256"])
    except FileNotFoundError as cause:
        why = "train with evaluate_every" if which == "best" else "it is not a checkpoint folder written by train"
        if (folder / "config.json").is_file():
            why = f"it is a Hugging Face folder: rdukit checkpoint convert {folder} FILE.safetensors makes a checkpoint"
        raise NotFound(f"{folder} has no {pointer}; {why}") from cause
    except (OSError, ValueError, KeyError, TypeError) as cause:
        raise InvalidArgument(f"{folder / pointer} is damaged: {cause!r}") from cause
    if not path.is_file() or (verify and sha256_of_file(path) != digest):
        raise InvalidArgument(f"{path} is missing or does not match {pointer}; train into another folder")
    return path


def find_differences(
    found: Mapping[str, Sequence[int]], wanted: Mapping[str, Sequence[int]]
) -> str | None:  # fmt: skip
    """Describe by which names and shapes a checkpoint's tensors differ from a model's; None if they are equal. Pure.

    Args:
        found: shape by name, of the checkpoint. wanted: those of the model.
    """
    missing = [name for name in wanted if name not in found]
    unknown = [name for name in found if name not in wanted]
    other = [
        f"{name} is {list(found[name])} instead of {list(shape)}"
        for name, shape in wanted.items()
        if name in found and tuple(found[name]) != tuple(shape)
    ]
    parts = (("it lacks ", missing), ("only the checkpoint has ", unknown), ("", other))
    return "; ".join(f"{about}{_some(names)}" for about, names in parts if names) or None


def _some(names: Sequence[str], most: int = 5) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def table_file(checkpoint: Path) -> Path:
    """Return the path of a checkpoint's preprocessing of tables: in its folder, or next to a safetensors file."""
    return (checkpoint if checkpoint.is_dir() else checkpoint.parent) / TABLE_FILE


def picture_file(checkpoint: Path) -> Path:
    """Return the path of a checkpoint's preprocessing of pictures: in its folder, or next to a safetensors file."""
    return (checkpoint if checkpoint.is_dir() else checkpoint.parent) / PICTURE_FILE


def read_identity(checkpoint: Path, which: str = "newest") -> ModelIdentity | None:
    """Return the identity of a checkpoint's model; None if the checkpoint lacks it.

    Raises:
        NotFound, InvalidArgument: as in ``find_checkpoint_file``.
    """
    return read_header(checkpoint_file(checkpoint, which, verify=False)).identity


def check_tokenizer(checkpoint: Path, file: Path) -> None:
    """Refuse a tokenizer other than that of a checkpoint's identity.

    Raises:
        NotFound, InvalidArgument: the tokenizer differs or is damaged, or as in ``read_identity``.
    """
    identity = read_identity(checkpoint)
    if identity is None or not identity.tokenizer:
        return
    require_same(
        identity, replace(identity, tokenizer=tokenizer_digest(file.read_text())), f"the checkpoint {checkpoint.name}",
        str(file), "add the tokenizer with which the checkpoint was trained",
    )  # fmt: skip


def read_pointers(folder: Path) -> list[tuple[str, list[dict[str, Any]]]]:
    """Return each pointer of a folder by name: its entry, followed by that of the previous file, if there is one.

    Raises:
        InvalidArgument: a pointer is damaged.
    """
    found = []
    for name in POINTERS:
        if (folder / name).is_file():
            try:
                value = json.loads((folder / name).read_text())
                before = value.get("previous")
                named = [value]
                if isinstance(before, dict) and (folder / Path(str(before["file"])).name).is_file():
                    named.append(before)
                found.append((name, [each for each in named if each["file"]]))
            except (ValueError, KeyError, TypeError, AttributeError) as cause:
                raise InvalidArgument(f"{folder / name} is damaged: {cause!r}") from cause
    return found
