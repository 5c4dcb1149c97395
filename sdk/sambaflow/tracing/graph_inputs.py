"""Inputs of a traced graph: placeholders and constants of the record, and the program's tensors for them."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, cast

import torch
from torch import fx, nn

from rdukit.errors import CompileError, TraceError
from rdukit.pef.model import Dtype
from rdukit_compiler import ModelGraph, Value, ValueKind
from sambaflow.samba.conversion import symbols_of
from sambaflow.samba.sambatensor import SambaTensor
from sambaflow.tracing.earlier_traces import Source, graft_earlier
from sambaflow.tracing.module_state import Grown
from sambaflow.tracing.torch_private import FakeTensor

#: Maximum number of traces in which buffers grow.
_GROWTHS: Final = 4


@dataclass(frozen=True, slots=True)
class Tensors:
    """The program's tensors with stand-ins in a trace: inputs by name, parameters and buffers by path."""

    inputs: dict[str, SambaTensor]
    parameters: dict[str, nn.Parameter]
    buffers: dict[str, torch.Tensor]

    @property
    def first_buffer(self) -> int:
        """The position of the first buffer in ``in_order``."""
        return len(self.inputs) + len(self.parameters)

    def in_order(self) -> list[SambaTensor | torch.Tensor]:
        """Return all tensors in the order of the record's placeholders: inputs, parameters, buffers."""
        return [*self.inputs.values(), *self.parameters.values(), *self.buffers.values()]

    def refuse_sparse(self) -> None:
        """Refuse tensors that are not dense.

        Raises:
            TraceError: there is such a tensor or buffer.
        """
        named: dict[str, SambaTensor | torch.Tensor] = {**self.inputs, **self.parameters, **self.buffers}
        for name, tensor in named.items():
            if tensor.layout is not torch.strided:
                raise TraceError(
                    f"{name!r} has layout {tensor.layout}; the RDU has dense tensors only: use to_dense(), or a "
                    "dense tensor with a mask"
                )


def find_sources(recorded: fx.GraphModule, name: str, model: nn.Module, tensors: Tensors) -> dict[fx.Node, Source]:
    """Return placeholders and constants of ``recorded``, in order, with their values in graph ``name`` and tensors.

    The operators of tensors that the program kept from earlier traces are inserted into ``recorded``.

    Raises:
        CompileError: two tensors have one symbol, or a parameter has none. TraceError: forward uses a tensor that
            depends on another graph's input, or that a function transformation left behind.
    """
    from rdukit_compiler import is_of_transformation

    listed, state = _list_values(f"{name}__", model, tensors)
    sources = {n: Source(v, state.get(v.name)) for n, v in zip(recorded.graph.nodes, listed, strict=False)}
    graft_earlier(recorded, sources)
    constants: set[str] = set()
    for node in recorded.graph.nodes:
        if node.op == "get_attr" and str(node.target) not in constants:
            tensor = getattr(recorded, str(node.target))
            if isinstance(tensor, FakeTensor):  # a stand-in that was reached through .data: the compiler handles it
                continue
            if is_of_transformation(tensor):
                raise TraceError(f"forward of {name!r} uses a tensor that a torch.func transformation left behind")
            symbol = f"{name}__constant__{len(constants)}"
            constants.add(str(node.target))
            sources[node] = Source(Value(symbol, ValueKind.BUFFER, _dtype(tensor), tuple(tensor.shape)), tensor)
    return sources


def grow_buffers(
    grown: Sequence[Grown], recorded: fx.GraphModule, sources: Mapping[fx.Node, Source], times: int
) -> dict[fx.Node, Source]:
    """Let buffers grow as in a trace; return the nodes that compute their new values → buffers.

    Args:
        times: number of earlier traces in which buffers grew.

    Raises:
        TraceError: a new value depends on inputs or parameters, or buffers grow at every call.
    """
    if times >= _GROWTHS:
        raise TraceError(
            f"forward changes the shape or dtype of buffer {grown[0].place.path!r} at every call; a buffer must keep "
            "both, or grow only once"
        )
    known = {
        node: source.tensor for node, source in sources.items()
        if source.value.kind is ValueKind.BUFFER and source.tensor is not None and not source.tensor.is_meta
    }  # fmt: skip
    names = {id(source.tensor): source.value.name for source in sources.values()}
    results = recorded.graph.output_node().args[0]
    assert isinstance(results, list | tuple)
    made: dict[fx.Node, Source] = {}
    for each, node in zip(grown, results[len(results) - len(grown) :], strict=True):
        if not isinstance(node, fx.Node):
            raise TraceError(
                f"forward changes the shape or dtype of buffer {each.place.path!r}, and its new value cannot be traced"
            )
        table = each.keep(node, known)
        name = names[id(each.place.original)]
        made[node] = Source(Value(name, ValueKind.BUFFER, _dtype(table), tuple(table.shape)), table)
    return made


def check_grown(graph: ModelGraph, growths: Sequence[Collection[str]]) -> None:
    """Refuse a buffer that grew in an earlier call, by its symbol in ``growths``, and that the graph updates.

    Raises:
        TraceError: there is such a tensor or buffer.
    """
    if counting := sorted(graph.updates.keys() & {symbol for grew in growths for symbol in grew}):
        raise TraceError(
            f"forward changes the shape or dtype of buffer {counting[0]!r} at its first call, and its value at later "
            "ones; the device has no first call: create the buffer with its final shape and dtype"
        )


def _list_values(
    prefix: str, model: nn.Module, tensors: Tensors
) -> tuple[list[Value], dict[str, torch.Tensor]]:  # fmt: skip
    named = tensors.inputs
    values = [Value(n, ValueKind.INPUT, _dtype(t), tuple(t.shape), t.requires_grad) for n, t in named.items()]
    state: dict[str, torch.Tensor] = {}
    for path, parameter in tensors.parameters.items():
        symbol = getattr(parameter, "sn_name", "")
        if not symbol:
            raise CompileError(
                f"parameter {path!r} was not converted; call samba.from_torch_model_(model) before compile and trace"
            )
        if symbol in named:
            raise CompileError(
                f"two tensors are called {symbol!r}: input and parameter {path!r}; give the input another name"
            )
        if symbol in state:
            raise CompileError(
                f"two tensors are called {symbol!r}; give the models different prefixes with "
                "samba.from_torch_model_(model, parent_module_prefix='…')"
            )
        state[symbol] = parameter
        values.append(
            Value(symbol, ValueKind.PARAMETER, _dtype(parameter), tuple(parameter.shape), parameter.requires_grad)
        )
    symbols = symbols_of(model)
    for path, buffer in tensors.buffers.items():
        symbol = symbols[path] if hasattr(model, "sn_prefix") else prefix + symbols[path]
        if symbol in state or symbol in named:
            raise CompileError(
                f"two tensors are called {symbol!r}, one of them buffer {path!r}; give the input or the attribute "
                "another name"
            )
        state[symbol] = buffer
        values.append(Value(symbol, ValueKind.BUFFER, _dtype(buffer), tuple(buffer.shape)))
    return values, state


def _dtype(tensor: "torch.Tensor | SambaTensor") -> Dtype:
    # The capture of a graph refuses dtypes that ``Dtype`` lacks.
    return cast(Dtype, str(tensor.dtype).removeprefix("torch."))
