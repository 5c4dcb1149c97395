"""Values of a trace: torch tensors, as on the host, that also have SambaTensor's members.

Forward may check whether a value is a ``torch.Tensor`` or a ``SambaTensor``: both are true, because a program passes
SambaTensors and its CPU script torch tensors. Source: ours.

Intermediate values that a program exposes by ``add_aux_tensor`` become outputs of the graph (SDK reference 6.3).
"""

import contextlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

import torch

from rdukit.errors import TraceError
from rdukit_compiler import ModelGraph
from sambaflow.samba.directives import recording
from sambaflow.samba.sambatensor import STANDS_FOR_SAMBA, SambaTensor, data_refusal
from sambaflow.tracing.torch_private import DisableTorchFunction, FakeTensor

_set_data = torch.Tensor.data.__set__  # type: ignore[attr-defined]


@contextlib.contextmanager
def traced_values() -> Iterator[None]:
    """Give tensors of the trace SambaTensor's members while the block lasts."""
    try:
        for name, member in _MEMBERS.items():
            setattr(FakeTensor, name, member)
        yield
    finally:
        for name in _MEMBERS:
            delattr(FakeTensor, name)


def as_input(value: torch.Tensor, original: SambaTensor) -> torch.Tensor:
    """Return ``value``, which stands for the input ``original``, with its name and dims."""
    value._samba = SambaTensor(  # type: ignore[attr-defined]
        shape=original.shape, dtype=original.dtype, name=original.sn_name, batch_dim=original.batch_dim,
        named_dims=original.named_dims, sized_dims=original.sized_dims, region_name=original._region,
    )  # fmt: skip
    return value


def as_parameter(value: torch.Tensor, original: torch.Tensor) -> None:
    """Make ``value`` stand for the parameter ``original``: ``isinstance(value, nn.Parameter)`` is then true."""
    value._is_param = True
    value._samba = SambaTensor(  # type: ignore[attr-defined]
        shape=original.shape, dtype=original.dtype, name=getattr(original, "sn_name", None)
    )


def _description(value: Any) -> SambaTensor:
    """Return an empty SambaTensor with name and dims of ``value``."""
    found = value.__dict__.get("_samba")
    if found is None:
        with DisableTorchFunction():  # the program looks up no dtype here
            found = value._samba = SambaTensor(shape=value.shape, dtype=value.dtype)
    assert isinstance(found, SambaTensor)
    return found


def _described(name: str) -> property:
    return property(
        lambda self: getattr(_description(self), name), lambda self, value: setattr(_description(self), name, value)
    )


def _assign_data(self: torch.Tensor, value: torch.Tensor) -> None:
    if getattr(self, "_is_state", False):  # parameters and buffers are refused by name after forward
        _set_data(self, value)
        return
    raise data_refusal(self.shape)


_MEMBERS: Final[dict[str, Any]] = {
    STANDS_FOR_SAMBA: True,
    **{name: _described(name) for name in (
        "sn_name", "has_name", "sn_region_name", "batch_dim", "named_dims", "sized_dims", "materializer",
        "is_complex_value", "host_memory", "mem_type",
    )},
    **{name: lambda self: self for name in ("torch_tensor", "torch", "rdu", "cpu_")},
    "has_data": True,
    "_is_empty": lambda self: False,
    "_is_output": False,
    "_pull": None,
    "data": property(lambda self: self.detach(), _assign_data),
}  # fmt: skip


def auxiliary_outputs(exposed: Collection[str] = ()) -> list[torch.Tensor]:
    """Return the last trace's exposed tensors, detached: they get no gradient, and each is a separate value.

    Names in ``exposed`` are left out, here and by ``name_auxiliary``: an earlier trace exposes these tensors.
    """
    for name in set(exposed) & recording.auxiliary.keys():
        del recording.auxiliary[name]
    return [torch.ops.aten.detach.default(tensor) for tensor in recording.auxiliary.values()]


def name_auxiliary(graph: ModelGraph) -> ModelGraph:
    """Give the last outputs of ``graph``, from ``auxiliary_outputs``, the program's names.

    Raises:
        TraceError: a name is taken, or forward returns no other tensor.
    """
    names: Sequence[str] = tuple(recording.auxiliary)
    if not names:
        return graph
    new = dict(zip(graph.outputs[-len(names) :], names, strict=True))
    if taken := [name for name in names if name in graph.values]:
        raise TraceError(f"add_aux_tensor: {taken[0]!r} is the name of another tensor; choose another")
    if len(graph.outputs) == len(names):
        raise TraceError(f"forward of {graph.name!r} returns no tensor; auxiliary tensors come beside its outputs")
    values = {new.get(n, n): replace(v, name=new.get(n, n)) for n, v in graph.values.items()}
    operators = tuple(
        replace(o, outputs=tuple(new.get(n, n) for n in o.outputs)) if new.keys() & set(o.outputs) else o
        for o in graph.operators
    )
    return replace(graph, values=values, operators=operators, outputs=tuple(new.get(n, n) for n in graph.outputs))
