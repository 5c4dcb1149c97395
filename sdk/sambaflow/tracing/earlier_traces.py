"""Tensors that a program keeps from one trace and uses in the next.

Programs cache tensors that do not depend on a graph's inputs, such as the tables of rotary embeddings, and several
graphs share it. In a trace such a tensor has no data, only its record: the operators that compute it from parameters,
buffers and constants. A later trace repeats these operators.
"""

from collections.abc import Collection, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.utils.weak import WeakIdKeyDictionary

from rdukit.errors import TraceError
from rdukit_compiler import Value, ValueKind
from sambaflow.tracing.torch_private import FakeTensor


@dataclass(frozen=True, slots=True)
class Source:
    """A graph input of a trace: its value, and the program's tensor for it (``None`` for inputs)."""

    value: Value
    tensor: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class _Origin:
    graph: str
    node: fx.Node
    sources: Mapping[fx.Node, Source]


#: Tensor of an earlier trace that the program still holds → its record. Weak: removed with the tensor.
_origins: MutableMapping[Any, _Origin] = WeakIdKeyDictionary()


def tracker_of_trace() -> Mapping[Any, Any]:
    """Return the current trace's tensors, weakly, with their proxies."""
    mode = get_proxy_mode()
    if mode is None:
        raise TraceError("no trace is going on")
    tracker: Mapping[Any, Any] = mode.tracer.tensor_tracker
    return tracker


def remember_traced(graph: str, tracker: Mapping[Any, Any], sources: Mapping[fx.Node, Source]) -> None:
    """Store the remaining tensors of a trace: ``tracker`` maps them to their proxies, weakly.

    The program's own tensors, which have values, are among them if an operator returned one unchanged.
    """
    for tensor, made in list(tracker.items()):
        if isinstance(tensor, FakeTensor):
            _origins[tensor] = _Origin(graph, made.proxy.node, sources)


def origin_of(tensor: torch.Tensor) -> fx.Node | None:
    """Return the node of an earlier trace that computed ``tensor``, if the program kept it."""
    origin = _origins.get(tensor)
    return None if origin is None else origin.node


def graft_earlier(recorded: fx.GraphModule, sources: dict[fx.Node, Source]) -> None:
    """Insert the operators of tensors from earlier traces before their first use, as forward would without its cache.

    Their parameters and buffers join ``sources``, in the order of the graph's placeholders; existing ones are shared.

    Raises:
        TraceError: such a tensor depends on an input of its graph.
    """
    graph = recorded.graph
    known = {id(source.tensor): node for node, source in sources.items() if source.tensor is not None}
    copies: dict[fx.Node, fx.Node] = {}

    def copy(node: fx.Node, origin: _Origin, use: fx.Node) -> fx.Node:
        if (source := origin.sources.get(node)) is not None:
            return _place(source, origin, node)
        with graph.inserting_before(use):
            return graph.node_copy(node, lambda made_from: copies[made_from])

    def _place(source: Source, origin: _Origin, node: fx.Node) -> fx.Node:
        if source.value.kind is ValueKind.INPUT:
            raise TraceError(
                f"forward uses a tensor kept from the trace of graph {origin.graph!r}, which depends on that graph's "
                f"input {source.value.name!r}; make it an output of that graph and an input of this one"
            )
        if (placed := known.get(id(source.tensor))) is not None:
            return placed
        last = list(sources)[-1] if sources else None
        with graph.inserting_after(last):
            placeholder = graph.placeholder(node.name)
        placeholder.meta = dict(node.meta)
        sources[placeholder] = source
        known[id(source.tensor)] = placeholder
        return placeholder

    for node in list(graph.nodes):
        if node.op != "get_attr":
            continue
        origin = _origins.get(getattr(recorded, str(node.target)))
        if origin is None:
            continue
        for earlier in _ancestors(origin.node, origin.sources):
            if earlier not in copies:
                copies[earlier] = copy(earlier, origin, node)
        node.replace_all_uses_with(copies[origin.node])
        graph.erase_node(node)


def _ancestors(node: fx.Node, sources: Collection[fx.Node]) -> list[fx.Node]:
    """Return ``node`` and its ancestors down to ``sources``, each after its own ancestors."""
    found: dict[fx.Node, None] = {}
    pending = [node]
    while pending:
        current = pending[-1]
        missing = [n for n in current.all_input_nodes if n not in found and current not in sources]
        if missing:
            pending.extend(missing)
        else:
            found.setdefault(pending.pop())
    return list(found)
