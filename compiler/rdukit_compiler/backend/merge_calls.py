"""Calls of a traced kernel that give the same as an earlier one become that one."""

from typing import Any, Final

import torch
from torch import fx

aten = torch.ops.aten

#: Operators that always give a view of their first argument.
_VIEWS: Final = frozenset(
    {
        aten.view.default, aten._unsafe_view.default, aten.t.default, aten.transpose.int, aten.permute.default,
        aten.unsqueeze.default, aten.squeeze.dim, aten.select.int, aten.slice.Tensor, aten.expand.default,
    }
)  # fmt: skip


def merge_views(graph: fx.Graph) -> None:
    """Views of one tensor that are the same view: whatever writes to it, they show the same memory."""
    _merge(graph, lambda node: node.target in _VIEWS)


def merge_calls(graph: fx.Graph, target: Any) -> None:
    """Calls of ``target``, which computes a value from tensors, where nothing writes to those tensors."""
    written = {
        _owner(node.args[0])
        for node in graph.nodes
        if isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable and node.args
    }
    _merge(graph, lambda node: node.target is target and not written & {_owner(a) for a in node.all_input_nodes})


def _merge(graph: fx.Graph, may_merge: Any) -> None:
    seen: dict[Any, fx.Node] = {}
    for node in list(graph.nodes):
        if node.op != "call_function" or not may_merge(node):
            continue
        earlier = seen.setdefault(repr((node.target, node.args, node.kwargs)), node)
        if earlier is not node:
            node.replace_all_uses_with(earlier)
            graph.erase_node(node)


def _owner(value: Any) -> Any:
    """The value whose memory ``value`` is, or is a view of."""
    while isinstance(value, fx.Node) and value.target in _VIEWS:
        value = value.args[0]
    return value
