"""Parameters of a checkpoint, read for a PEF: the file, its tensors, and the symbol that each belongs to.

A checkpoint says ``encoder.0.weight``; the compiler calls the same tensor ``<model>__encoder__0__weight``.
"""

import base64
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load

from rdukit.errors import InvalidArgument, NotFound, PefMismatch
from rdukit.files.atomic import sha256_of_file
from rdukit.pef.file import BOX_KEY
from rdukit.pef.identity import ModelIdentity, identity_in, require_same
from rdukit.pef.model import CONSTANTS, UNSAVED_STATE, Pef, SymbolKind, flatten_paths
from rdukit_serving.shape import Shape, TensorNames, shape_of

logger = logging.getLogger(__name__)

LATEST: Final = "latest.json"
BEST: Final = "best.json"

Tensors = Mapping[str, torch.Tensor]
#: What a linear layer has beside its weight where it was trained by an update of low rank.
ADAPTER_PARTS: Final = (".lora_A", ".lora_B", ".lora_scale")


def load_parameters(checkpoint: Path, which: str = "newest", wanted: Shape | None = None) -> tuple[int, Tensors]:
    """Return step and parameters of a checkpoint, without optimizer and position: a third of the memory.

    ``checkpoint`` is a folder that train made, or any safetensors file, whose tensors are the parameters at step 0.
    ``wanted`` is the shape of the PEF that they are for.

    Raises:
        NotFound: as ``find_checkpoint_file``. InvalidArgument: as there, or the checkpoint is of another model.
    """
    with open_parameters(checkpoint, which, wanted) as stored:
        found = {name: stored.read(name) for name in stored.names}
    if wanted is not None:
        check_tied(wanted.tensors, found)
    return stored.step, found


class StoredParameters(NamedTuple):
    """Parameters of an open checkpoint, read one at a time."""

    step: int
    names: Sequence[str]
    read: Callable[[str], torch.Tensor]
    #: The model that they are of; None where the file does not say it.
    identity: ModelIdentity | None = None


@contextmanager
def open_parameters(
    checkpoint: Path, which: str = "newest", wanted: Shape | None = None
) -> Iterator[StoredParameters]:  # fmt: skip
    """Open a checkpoint to read one tensor after another: they need not all be in memory at once.

    Raises:
        NotFound: as ``find_checkpoint_file``. InvalidArgument: as there, or the checkpoint is of another model than
            the PEF whose shape is ``wanted``.
    """
    path = checkpoint if checkpoint.is_file() else find_checkpoint_file(checkpoint, which)
    unreadable = f"{path} is not a checkpoint that this version can read"
    try:
        with safe_open(path, framework="pt") as stream:
            metadata = stream.metadata() or {}
            try:
                ours = metadata.get("rdukit")
                step, prefix = (int(json.loads(ours)["step"]), "parameter/") if ours else (0, "")
            except (ValueError, KeyError, TypeError) as cause:
                raise InvalidArgument(f"{unreadable}: {cause!r}") from cause
            identity = identity_in(metadata)
            if wanted is not None:
                check_model(wanted, identity, path)
            names = [name.removeprefix(prefix) for name in stream.keys() if name.startswith(prefix)]  # noqa: SIM118
            yield StoredParameters(step, names, lambda name: stream.get_tensor(prefix + name), identity)
    except SafetensorError as cause:
        raise InvalidArgument(f"{unreadable}: {cause!r}") from cause


def read_identity(checkpoint: Path, which: str = "newest") -> ModelIdentity | None:
    """Return the model that a checkpoint says it is of; None where it does not.

    Raises:
        NotFound, InvalidArgument: as ``find_checkpoint_file``.
    """
    with open_parameters(checkpoint, which) as stored:
        return stored.identity


def check_model(wanted: Shape, identity: ModelIdentity | None, checkpoint: Path) -> None:
    """Refuse a checkpoint of another model than the PEF; warn where one of them does not say which it is of.

    Raises:
        InvalidArgument: names each value that differs.
    """
    if identity is not None and wanted.identity is not None:
        has_data = wanted.identity.classes or wanted.identity.tokenizer
        require_same(
            identity, wanted.identity, f"the checkpoint {checkpoint.name}",
            "the PEF with its data set" if has_data else "the PEF",
            "compile with the checkpoint's values, or take a checkpoint of this model",
        )  # fmt: skip
    elif identity is None:
        logger.warning(
            "checkpoint=%s does not say what model it is of: only names and shapes are compared; write it by "
            "'rdukit checkpoint stamp'",
            checkpoint,
        )
    else:
        logger.warning("the PEF does not say what model it is of: only names and shapes are compared; compile it again")


def check_tied(names: TensorNames, parameters: Tensors) -> None:
    """Refuse tensors that differ, where the PEF's model has a single one for them.

    Raises:
        InvalidArgument: names both.
    """
    for group in names.tied:
        first, *others = [name for name in group if name in parameters] or [""]
        for other in others:
            if not torch.equal(parameters[first], parameters[other]):
                raise InvalidArgument(
                    f"tie_word_embeddings: {other} and {first} differ in the checkpoint, and are one tensor in the "
                    "PEF's model (is_tied); compile with is_tied=false, where the model has it, or take a tied "
                    "checkpoint"
                )


def find_checkpoint_file(folder: Path, which: str) -> Path:
    """Find the file that a pointer names, and compare its digest.

    Raises:
        NotFound: there is no such pointer. InvalidArgument: it, or the file that it names, is damaged.
    """
    if which not in {"newest", "previous", "best"}:
        raise InvalidArgument(f"there is no checkpoint {which!r}; legal: newest, previous, best")
    pointer = BEST if which == "best" else LATEST
    try:
        named = json.loads((folder / pointer).read_text())
        if which == "previous":
            named = named["previous"]
        path = folder / Path(str(named["file"])).name
        digest = str(named["sha256"])
    except FileNotFoundError as cause:
        why = "train with evaluate_every" if which == "best" else "it is not a checkpoint folder that train made"
        raise NotFound(f"{folder} has no {pointer}; {why}") from cause
    except (ValueError, KeyError, TypeError) as cause:
        raise InvalidArgument(f"{folder / pointer} is damaged: {cause!r}") from cause
    if not path.is_file() or sha256_of_file(path) != digest:
        raise InvalidArgument(f"{path} is missing or does not match {pointer}; train into another folder")
    return path


class LayerUpdate(NamedTuple):
    """Update of low rank of a layer: A [r, I] and B [O, r], whose product is multiplied by the scale [1]; f32."""

    down: torch.Tensor
    up: torch.Tensor
    scale: torch.Tensor


def split_adapters(parameters: Tensors) -> tuple[Mapping[str, LayerUpdate], dict[str, torch.Tensor]]:
    """Return the updates of low rank by layer, and the other parameters.

    Raises:
        InvalidArgument: an update lacks a part.
    """
    others = {name: value for name, value in parameters.items() if not name.endswith(ADAPTER_PARTS)}
    updates: dict[str, LayerUpdate] = {}
    for layer in sorted({name.rpartition(".")[0] for name in parameters.keys() - others.keys()}):
        try:
            updates[layer] = LayerUpdate(*(parameters[layer + part].float() for part in ADAPTER_PARTS))
        except KeyError as cause:
            raise InvalidArgument(f"the checkpoint has an adapter for {layer} without {cause}") from cause
    return updates, others


def merge_adapters(parameters: Tensors) -> Tensors:
    """Add the updates of low rank to the weights that they belong to: W + scale · B A, in f32.

    Raises:
        InvalidArgument: an update lacks a part, or its weight.
    """
    updates, found = split_adapters(parameters)
    for layer, update in updates.items():
        weight = found.get(f"{layer}.weight")
        if weight is None:
            raise InvalidArgument(f"the checkpoint has an adapter for {layer} without '{layer}.weight'")
        found[f"{layer}.weight"] = (weight.float() + update.scale * (update.up @ update.down)).to(weight.dtype)
    return found


def read_constants(pef: Pef) -> Tensors:
    """Return the values by symbol that a PEF reads and no checkpoint holds.

    Raises:
        PefMismatch: it reads others, which only the program that compiled it has: here they would be zero.
    """
    if names := pef.metadata.get(UNSAVED_STATE):
        raise PefMismatch(
            f"{pef.name} reads {_some([str(name) for name in names])}, which no checkpoint holds and which is too "
            "large for a PEF; make it a buffer with register_buffer(..., persistent=True), and compile again"
        )
    data = pef.metadata.get(CONSTANTS)
    return load(base64.b64decode(str(data))) if data else {}


def text_parameters(pef: Pef, parameters: Tensors) -> list[tuple[str, torch.Tensor]]:
    """Return what a program of texts reads by symbol: of the checkpoint, and what the PEF has itself.

    A PEF may be compiled for fewer positions than the checkpoint has tables of: a table that is no parameter, such as
    one of rotary angles, has a row for each position, whatever their number, and the first ones are taken.

    Raises:
        InvalidArgument: a table is of fewer positions than the PEF has; or as ``match_parameters``.
        PefMismatch: as ``read_constants``.
    """
    text = shape_of(pef, pef.name).text
    found = [*read_constants(pef).items()]
    for name, symbol in match_parameters(pef, parameters).items():
        value, (rows, *rest) = parameters[name], pef.symbols[symbol].shape or (0,)
        is_table = text is not None and rows == text.context and pef.symbols[symbol].kind is SymbolKind.BUFFER
        if is_table and list(value.shape[1:]) == rest and len(value) < rows:
            raise InvalidArgument(
                f"the checkpoint's {name!r} is of {len(value)} positions, {pef.name} was compiled with context_length="
                f"{rows}; legal: up to {len(value)}"
            )
        found.append((symbol, value[:rows] if is_table and value.dim() > 0 else value))
    return found


def match_parameters(pef: Pef, names: Iterable[str]) -> Mapping[str, str]:
    """Return the symbol of each checkpoint name that has one; a name of a tied tensor may have none.

    Raises:
        InvalidArgument: a parameter of the PEF is in no checkpoint name; lists them.
    """
    wanted = {name for name, s in pef.symbols.items() if s.kind in (SymbolKind.PARAMETER, SymbolKind.BUFFER)}
    scales = {symbol.scale for symbol in pef.symbols.values() if symbol.scale}
    wanted -= scales
    flat = flatten_paths(names)
    found: dict[str, str] = {}
    for name, tail in flat.items():
        symbol = tail if tail in wanted else _find(wanted, tail)
        if symbol is not None:
            found[name] = symbol
    needed = {name for name in wanted if pef.symbols[name].kind is SymbolKind.PARAMETER} | _kept_buffers(pef, wanted)
    missing, unused = sorted(needed - set(found.values())), _unused(pef, flat.keys() - found.keys())
    if missing:
        raise InvalidArgument(
            f"the checkpoint has no tensor for {_some(missing)} of {pef.name}; it has {_some(sorted(flat))}. Of a "
            "Hugging Face folder, 'rdukit checkpoint convert' makes a checkpoint with all of them"
        )
    if unused:
        logger.warning("pef=%s takes no tensor %s of the checkpoint", pef.name, _some(unused))
    return found


def _kept_buffers(pef: Pef, wanted: Iterable[str]) -> set[str]:
    """Return the symbols of buffers that a checkpoint holds; none of a PEF that does not say them."""
    if BOX_KEY not in pef.metadata:
        return set()
    found = {_find(wanted, tail) for tail in flatten_paths(shape_of(pef, pef.name).tensors.buffers).values()}
    return {symbol for symbol in found if symbol is not None}


def _unused(pef: Pef, names: Iterable[str]) -> list[str]:
    """Return names that a checkpoint has and the PEF takes under no name; adapters and tied names are none."""
    known = shape_of(pef, pef.name).tensors if BOX_KEY in pef.metadata else TensorNames()
    return sorted(set(names) - {*known.buffers, *(name for group in known.tied for name in group)})


def _find(wanted: Iterable[str], tail: str) -> str | None:
    """Return the symbol whose name ends with ``tail`` after the model's own name, which has no ``__``."""
    return next((name for name in wanted if name.partition("__")[2] == tail), None)


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (" …" if len(names) > 5 else "")
