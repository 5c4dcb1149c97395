"""Spatial mapping: one call streams several batches through a graph that was compiled for one.

Each batch is a complete step, including the optimizer, on the parameters of the step before, as in a loop on the host.
Source: SDK reference 7.1. How outputs are joined is ours: along their first axis, and outputs without axes, such as a
mean loss, as a vector with an element a batch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from rdukit.errors import InvalidArgument, PefMismatch, ShapeMismatch
from rdukit.pef import read_pef
from sambaflow.samba.sambatensor import SambaTensor, SambaTensors
from sambaflow.tracing.tracer import flatten_tensors


@dataclass(slots=True)
class SpatialBatches:
    """``count`` batches in a call. ``axes``: input → the axis along which the batches are joined."""

    count: int
    axes: Mapping[str, int]
    #: Whether they belong to virtual ranks, and make one step.
    are_replicas: bool = False
    #: Output → incoming gradient of all batches, joined; until set again.
    seeds: dict[str, torch.Tensor] = field(default_factory=dict)

    def part(self, name: str, tensor: torch.Tensor, number: int) -> torch.Tensor:
        """Return batch ``number`` of an input; an input with a single batch is the same for all."""
        return _part(tensor, self.axes[name], number, self.count) if name in self.axes else tensor

    def seed_part(self, name: str, number: int) -> torch.Tensor:
        """Return batch ``number`` of an output's incoming gradient."""
        value = self.seeds[name]
        return value[number] if value.dim() == 1 and len(value) == self.count else _part(value, 0, number, self.count)

    def joined_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of an output of all batches."""
        return (shape[0] * self.count, *shape[1:]) if shape else (self.count,)


def divide(
    inputs: Any, path: str, mapping: str, options: Mapping[str, Any]
) -> tuple[Any, SpatialBatches | None]:  # fmt: skip
    """Return the first batch of a program's inputs, for a trace, and their division into batches.

    Args:
        inputs: SambaTensors in any nesting; several batches with ``mapping`` spatial, or of virtual ranks. path: the
            PEF's.
    Raises:
        PefMismatch: inputs disagree, or do not hold a batch for each virtual rank.
    """
    count, is_spatial = int(options.get("virtual_ranks") or 1), str(mapping).lower() == "spatial"
    batches = find_batches(inputs, path) if is_spatial or count > 1 else None
    if count > 1:
        found = 1 if batches is None else batches.count
        if is_spatial:
            raise InvalidArgument("--virtual-ranks cannot be combined with mapping='spatial'; leave one of them out")
        if batches is None or found != count:
            raise PefMismatch(
                f"the inputs hold {found} times the batch of {path}; with --virtual-ranks {count} pass {count} "
                "batches, that of rank 0 first"
            )
        batches.are_replicas = True
    return (inputs if batches is None else first_batch(inputs, batches)), batches


def refuse_replicas(options: Mapping[str, Any]) -> None:
    """Refuse virtual ranks of a program with several graphs.

    Raises:
        InvalidArgument: the options request virtual ranks.
    """
    if int(options.get("virtual_ranks") or 1) > 1:
        raise InvalidArgument("--virtual-ranks runs only PEFs with one graph; start one process for each rank")


def find_batches(inputs: Any, path: str) -> SpatialBatches | None:
    """Count the compiled batches in the program's inputs; None for a single one.

    Args:
        inputs: SambaTensors in any nesting. path: the PEF's.
    Raises:
        PefMismatch: inputs disagree, or a size is not a multiple of the compiled one.
    """
    named = {t.sn_name: t for t in flatten_tensors(inputs) if isinstance(t, SambaTensor)}
    compiled = {name: symbol.shape for name, symbol in read_pef(path).pef.symbols.items()}
    counts: dict[str, int] = {}
    axes: dict[str, int] = {}
    for name, tensor in named.items():
        shape, wanted = tuple(tensor.shape), tuple(compiled.get(name, tuple(tensor.shape)))
        different = [i for i, (ours, theirs) in enumerate(zip(shape, wanted, strict=False)) if ours != theirs]
        if not different:
            continue
        axis = different[0]
        if len(shape) != len(wanted) or len(different) > 1 or not wanted[axis] or shape[axis] % wanted[axis]:
            raise PefMismatch(
                f"input {name!r} is {list(shape)}; expected batches of {list(wanted)}, one after "
                f"the other along one axis, as {path} was compiled for"
            )
        counts[name], axes[name] = shape[axis] // wanted[axis], axis
    if len(set(counts.values())) > 1:
        raise PefMismatch(
            f"inputs hold different numbers of batches: {counts}; {path} expects the same number for each"
        )
    return SpatialBatches(next(iter(counts.values())), axes) if counts else None


def first_batch(inputs: Any, batches: SpatialBatches) -> Any:
    """Return ``inputs`` of any nesting with every tensor cut to its first batch, for a trace."""
    if isinstance(inputs, SambaTensor):
        if inputs.sn_name not in batches.axes:
            return inputs
        return SambaTensor(
            batches.part(inputs.sn_name, inputs.torch_tensor(), 0), name=inputs.sn_name, batch_dim=inputs.batch_dim,
            named_dims=inputs.named_dims, sized_dims=inputs.sized_dims, region_name=inputs._region,
        )  # fmt: skip
    if isinstance(inputs, SambaTensors):
        return SambaTensors({name: first_batch(tensor, batches) for name, tensor in dict.items(inputs)})
    if isinstance(inputs, Mapping):
        return {key: first_batch(value, batches) for key, value in inputs.items()}
    if isinstance(inputs, list | tuple):
        return type(inputs)(first_batch(value, batches) for value in inputs)
    return inputs


def join_parts(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Join the outputs of the batches into one."""
    return torch.cat(list(parts)) if parts[0].dim() else torch.stack(list(parts))


def _part(tensor: torch.Tensor, axis: int, number: int, count: int) -> torch.Tensor:
    size, rest = divmod(tensor.shape[axis], count)
    if rest:
        raise ShapeMismatch(
            f"a tensor of shape {list(tensor.shape)} does not divide into {count} equal batches along axis {axis}; "
            "pass whole batches"
        )
    return tensor.narrow(axis, number * size, size)
