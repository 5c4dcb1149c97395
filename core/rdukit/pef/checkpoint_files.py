"""Files of checkpoints: the pointers of a folder that train made, and the header of a safetensors file. No torch.

A folder has ``latest.json``, and ``best.json`` where trainings are judged on their way; each names a file and its
digest. A file that train made has its parameters under ``parameter/``, and how far it was in its metadata; any other
safetensors file is parameters alone, at step 0.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from rdukit.errors import InvalidArgument, NotFound
from rdukit.files.atomic import sha256_of_file
from rdukit.pef.identity import IdentityValue, ModelIdentity, identity_in, require_same, tokenizer_digest

LATEST: Final = "latest.json"
BEST: Final = "best.json"
POINTERS: Final = (LATEST, BEST)
#: Names that a checkpoint is asked for by, and the pointer of each.
WHICH: Final = {"newest": LATEST, "previous": LATEST, "best": BEST}
#: What the names of parameters begin with in a file that train made.
PREFIX: Final = "parameter/"
#: Key of a training's position in the metadata of a file.
TRAINING_KEY: Final = "rdukit"
#: What a linear layer has beside its weight where it was trained by an update of low rank.
ADAPTER_PARTS: Final = (".lora_A", ".lora_B", ".lora_scale")
#: Name of the file that says how rows of a table become features, in a data set and beside a checkpoint.
TABLE_FILE: Final = "preprocessing.json"
#: Name of the file that says how a picture becomes an array, at the same places.
PICTURE_FILE: Final = "picture_preprocessing.json"
#: Bytes of a header at most, as the safetensors library has it.
MAX_HEADER_BYTES: Final = 100_000_000


@dataclass(frozen=True, slots=True)
class CheckpointHeader:
    """Header of a safetensors file: what it says of its model, and names and shapes of its parameters."""

    metadata: Mapping[str, str]
    #: Shapes of the parameters by the names that the model gives them.
    shapes: Mapping[str, tuple[int, ...]]
    #: Steps of the training that made it; 0 of any other file.
    step: int
    #: What the file puts before the names of parameters.
    prefix: str
    #: The model; None where the file does not say it.
    identity: ModelIdentity | None
    #: Sizes that a training of an earlier version wrote down; empty: none.
    trained_sizes: Mapping[str, IdentityValue]


def read_header(file: Path) -> CheckpointHeader:
    """Read the header of a safetensors file, without its tensors.

    Raises:
        InvalidArgument: it is no such file, or what it says of its model is damaged.
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

    ``verify``: compare its digest, which reads all of it.

    Raises:
        NotFound: there is no such file, folder or pointer. InvalidArgument: it, or the file that it names, is damaged.
    """
    if not checkpoint.exists():
        raise NotFound(f"there is no checkpoint {checkpoint}; legal: a safetensors file, or a folder that train made")
    return checkpoint if checkpoint.is_file() else find_checkpoint_file(checkpoint, which, verify=verify)


def find_checkpoint_file(folder: Path, which: str, *, verify: bool = True) -> Path:
    """Find the file that a pointer names, and with ``verify`` compare its digest.

    Raises:
        NotFound: there is no such pointer. InvalidArgument: it, or the file that it names, is damaged.
    """
    if which not in WHICH:
        raise InvalidArgument(f"there is no checkpoint {which!r}; legal: {', '.join(WHICH)}")
    pointer = WHICH[which]
    try:
        named = json.loads((folder / pointer).read_text())
        if which == "previous":
            named = named["previous"]
        path = folder / Path(str(named["file"])).name
        digest = str(named["sha256"])
    except FileNotFoundError as cause:
        why = "train with evaluate_every" if which == "best" else "it is not a checkpoint folder that train made"
        if (folder / "config.json").is_file():
            why = f"it is a Hugging Face folder: rdukit checkpoint convert {folder} FILE.safetensors makes a checkpoint"
        raise NotFound(f"{folder} has no {pointer}; {why}") from cause
    except (OSError, ValueError, KeyError, TypeError) as cause:
        raise InvalidArgument(f"{folder / pointer} is damaged: {cause!r}") from cause
    if not path.is_file() or (verify and sha256_of_file(path) != digest):
        raise InvalidArgument(f"{path} is missing or does not match {pointer}; train into another folder")
    return path


def table_file(checkpoint: Path) -> Path:
    """Return the place of a checkpoint's preprocessing of tables: in its folder, or beside a safetensors file."""
    return (checkpoint if checkpoint.is_dir() else checkpoint.parent) / TABLE_FILE


def picture_file(checkpoint: Path) -> Path:
    """Return the place of a checkpoint's preprocessing of pictures: in its folder, or beside a safetensors file."""
    return (checkpoint if checkpoint.is_dir() else checkpoint.parent) / PICTURE_FILE


def read_identity(checkpoint: Path, which: str = "newest") -> ModelIdentity | None:
    """Return the model that a checkpoint says it is of; None where it does not.

    Raises:
        NotFound, InvalidArgument: as ``find_checkpoint_file``.
    """
    return read_header(checkpoint_file(checkpoint, which, verify=False)).identity


def check_tokenizer(checkpoint: Path, file: Path) -> None:
    """Refuse a tokenizer that is not the one that a checkpoint says.

    Raises:
        NotFound, InvalidArgument: it is another; as ``read_identity``, or the tokenizer is damaged.
    """
    identity = read_identity(checkpoint)
    if identity is None or not identity.tokenizer:
        return
    require_same(
        identity, replace(identity, tokenizer=tokenizer_digest(file.read_text())), f"the checkpoint {checkpoint.name}",
        str(file), "put the tokenizer there that the checkpoint was trained with",
    )  # fmt: skip


def read_pointers(folder: Path) -> list[tuple[str, list[dict[str, Any]]]]:
    """Return each pointer of a folder by name: what it says, and then what it says of the file before, if there is one.

    Raises:
        InvalidArgument: one is damaged.
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
