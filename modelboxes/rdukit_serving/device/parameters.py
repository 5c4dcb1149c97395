"""Parameters of a checkpoint, read for a PEF: the file, its tensors, and the symbol that each belongs to.

A checkpoint says ``encoder.0.weight``; the compiler calls the same tensor ``<model>__encoder__0__weight``.
"""

import base64
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load

from rdukit.errors import InvalidArgument, PefMismatch
from rdukit.pef.checkpoint_files import ADAPTER_PARTS, CheckpointHeader, checkpoint_file, read_header
from rdukit.pef.file import BOX_KEY
from rdukit.pef.identity import ModelIdentity, SizeValue, require_same
from rdukit.pef.model import CONSTANTS, UNSAVED_STATE, Pef, SymbolKind, flatten_paths
from rdukit_serving.shape import Shape, TensorNames, shape_of

logger = logging.getLogger(__name__)

Tensors = Mapping[str, torch.Tensor]


def load_parameters(checkpoint: Path, which: str = "newest", wanted: Shape | None = None) -> tuple[int, Tensors]:
    """Return step and parameters of a checkpoint, without optimizer and position: a third of the memory.

    ``checkpoint`` is a folder that train made, or any safetensors file, whose tensors are the parameters at step 0.
    ``wanted`` is the shape of the PEF to load them for.

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
    #: The model that they belong to; None if the file does not name it.
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
    path = checkpoint_file(checkpoint, which)
    header = read_header(path)
    if wanted is not None:
        compare_models(wanted, header, path)
        _warn_of_unknown(wanted, header, path)
    try:
        with safe_open(path, framework="pt") as stream:
            yield StoredParameters(
                header.step, list(header.shapes), lambda name: stream.get_tensor(header.prefix + name), header.identity
            )
    except SafetensorError as cause:
        raise InvalidArgument(
            f"{path} is damaged, or not a checkpoint that this version can read; expected a safetensors file"
        ) from cause


class StoredTensors(Mapping[str, torch.Tensor]):
    """Parameters by name, each read from its file on demand, so that memory never holds a copy of all."""

    def __init__(self, stored: StoredParameters) -> None:
        """Take an open checkpoint, which must stay open until the last tensor is read."""
        self._stored, self._names = stored, dict.fromkeys(stored.names)

    def __getitem__(self, name: str) -> torch.Tensor:
        """Read a tensor."""
        if name not in self._names:
            raise KeyError(name)
        return self._stored.read(name)

    def __contains__(self, name: object) -> bool:
        """Return whether the file has a tensor of this name, without reading it."""
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        """Return the names."""
        return iter(self._names)

    def __len__(self) -> int:
        """Return the number of tensors."""
        return len(self._names)


@contextmanager
def merged_parameters(
    checkpoint: Path, which: str = "newest", wanted: Shape | None = None
) -> Iterator[tuple[int, Tensors]]:  # fmt: skip
    """Open a checkpoint to serve it: its step, and its parameters with their adapters added.

    Tensors are read on demand, except where adapters are added.

    Raises:
        NotFound, InvalidArgument: as ``open_parameters``, ``check_tied`` and ``merge_adapters``.
    """
    with open_parameters(checkpoint, which, wanted) as stored:
        found = StoredTensors(stored)
        if wanted is not None:
            check_tied(wanted.tensors, found)
        has_adapters = any(name.endswith(ADAPTER_PARTS) for name in stored.names)
        yield stored.step, merge_adapters(dict(found)) if has_adapters else found


def check_checkpoint(wanted: Shape, checkpoint: Path, which: str = "newest") -> None:
    """Refuse a checkpoint of another model than the PEF by its header, before anything is loaded.

    Raises:
        NotFound, InvalidArgument: as ``find_checkpoint_file`` and ``compare_models``.
    """
    path = checkpoint_file(checkpoint, which, verify=False)
    compare_models(wanted, read_header(path), path)


def compare_models(wanted: Shape, header: CheckpointHeader, checkpoint: Path) -> None:
    """Refuse a checkpoint of another model than the PEF.

    Earlier versions wrote sizes without their meaning; those that are not 0 are compared.

    Raises:
        InvalidArgument: names each value that differs.
    """
    known = header.identity or wanted.identity
    if known is None:
        return
    ours = wanted.identity or _of_sizes(known, wanted.sizes)
    require_same(
        header.identity or _of_sizes(known, header.trained_sizes), ours, f"the checkpoint {checkpoint.name}",
        "the PEF with its data set" if ours.classes or ours.columns or ours.tokenizer else "the PEF",
        "compile with the checkpoint's values, or use a checkpoint of this model",
    )  # fmt: skip


def _warn_of_unknown(wanted: Shape, header: CheckpointHeader, checkpoint: Path) -> None:
    """Warn if the checkpoint or the PEF does not identify its model."""
    if header.identity is None:
        logger.warning(
            "checkpoint=%s does not identify its model, so only names, shapes and known sizes are compared; add the "
            "identity by 'rdukit checkpoint stamp'",
            checkpoint,
        )
    elif wanted.identity is None:
        logger.warning(
            "the PEF does not identify its model, so only names, shapes and known sizes are compared; compile it again"
        )


def _of_sizes(known: ModelIdentity, sizes: Mapping[str, SizeValue]) -> ModelIdentity:
    """Return the identity from sizes; a size of 0 means unknown."""
    return ModelIdentity(
        known.architecture, {name: value for name, value in sizes.items() if value != 0 or value is False}
    )


def check_tied(names: TensorNames, parameters: Tensors) -> None:
    """Refuse differing tensors that are a single one in the PEF's model.

    Raises:
        InvalidArgument: names both.
    """
    for group in names.tied:
        first, *others = [name for name in group if name in parameters] or [""]
        for other in others:
            if not torch.equal(parameters[first], parameters[other]):
                raise InvalidArgument(
                    f"tie_word_embeddings: {other} and {first} differ in the checkpoint, but are one tensor in the "
                    "PEF's model (is_tied); compile with is_tied=false if the model has that size, or use a tied "
                    "checkpoint"
                )


def check_stored_ties(names: TensorNames, stored: StoredParameters) -> None:
    """Refuse as ``check_tied``, and read only the tensors that may differ."""
    tied = {name for group in names.tied for name in group}
    check_tied(names, {name: stored.read(name) for name in stored.names if name in tied})


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
            f"{pef.name} reads {_some([str(name) for name in names])}, which is in no checkpoint and too large for a "
            "PEF; make it a buffer with register_buffer(..., persistent=True), and compile again"
        )
    data = pef.metadata.get(CONSTANTS)
    return load(base64.b64decode(str(data))) if data else {}


def text_parameters(pef: Pef, parameters: Tensors) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors of a text program, by symbol, from the checkpoint and from the PEF.

    A PEF may be compiled for fewer positions than the checkpoint's tables have. Other tables, such as rotary angles,
    have a row for each position; the first ones are used.

    Raises:
        InvalidArgument: a table is of fewer positions than the PEF has; or as ``match_parameters``.
        PefMismatch: as ``read_constants``.
    """
    text = shape_of(pef, pef.name).text
    yield from read_constants(pef).items()
    for name, symbol in match_parameters(pef, parameters).items():
        value, (rows, *rest) = parameters[name], pef.symbols[symbol].shape or (0,)
        is_table = text is not None and rows == text.context and pef.symbols[symbol].kind is SymbolKind.BUFFER
        if is_table and list(value.shape[1:]) == rest and len(value) < rows:
            raise InvalidArgument(
                f"the checkpoint's {name!r} has {len(value)} positions, but {pef.name} was compiled with "
                "context_length="
                f"{rows}; expected up to {len(value)}"
            )
        yield symbol, value[:rows] if is_table and value.dim() > 0 else value


def match_parameters(pef: Pef, names: Iterable[str]) -> Mapping[str, str]:
    """Return the symbol of each checkpoint name; a name of a tied tensor may have none.

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
            f"the checkpoint has no tensor for {_some(missing)} of {pef.name}; it has {_some(sorted(flat))}. 'rdukit "
            "checkpoint convert' writes a complete checkpoint from a Hugging Face folder"
        )
    if unused:
        logger.warning("pef=%s ignores tensor %s of the checkpoint", pef.name, _some(unused))
    return found


def _kept_buffers(pef: Pef, wanted: Iterable[str]) -> set[str]:
    """Return the symbols of buffers that a checkpoint holds.

    A PEF of an earlier version, or of a program without a box, does not name them. Then they are the buffers that are
    neither written by a section nor stored in the PEF, such as tables of rotary angles.
    """
    shape = shape_of(pef, pef.name) if BOX_KEY in pef.metadata else None
    if shape is None or shape.identity is None:
        written = {name for section in pef.sections for name in section.outputs}
        return (
            {name for name in wanted if pef.symbols[name].kind is SymbolKind.BUFFER} - written - {*read_constants(pef)}
        )
    found = {_find(wanted, tail) for tail in flatten_paths(shape.tensors.buffers).values()}
    return {symbol for symbol in found if symbol is not None}


def _unused(pef: Pef, names: Iterable[str]) -> list[str]:
    """Return the unmatched ``names`` of a checkpoint, without buffers and tied parameters."""
    known = shape_of(pef, pef.name).tensors if BOX_KEY in pef.metadata else TensorNames()
    return sorted(set(names) - {*known.buffers, *(name for group in known.tied for name in group)})


def _find(wanted: Iterable[str], tail: str) -> str | None:
    """Return the symbol whose name ends with ``tail`` after the model's own name, which has no ``__``."""
    return next((name for name in wanted if name.partition("__")[2] == tail), None)


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (" …" if len(names) > 5 else "")
