"""Let a section put values into a buffer where it lies, rather than make a second buffer and copy it over the first.

A model graph has no in-place operators: ``cache.index_copy_(2, position, keys)`` is an operator that makes a new cache,
and the section's kernel would copy all of it to change one row. Where nothing reads the old value afterwards, the
kernel's operator becomes the in-place one on the kernel's input, and the kernel hands that input back.
"""

from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import fx

aten = torch.ops.aten

#: Operators that put values into a copy of their first argument, and their in-place forms.
_IN_PLACE: Final[dict[Any, Any]] = {
    aten.index_copy.default: aten.index_copy_.default,
    aten.index_put.default: aten.index_put_.default,
    aten.scatter.src: aten.scatter_.src,
    aten.scatter.value: aten.scatter_.value,
}
#: Operators that put values into a part of a copy of their first argument, and what takes a view of that part.
_PARTS: Final[dict[Any, Any]] = {
    aten.slice_scatter.default: aten.slice.Tensor,
    aten.select_scatter.default: aten.select.int,
}


def update_in_place(graph: fx.Graph, updates: Mapping[int, int]) -> None:
    """Rewrite the operators that lead from an input to its new value, where all of them can work in place.

    Args:
        graph: a section's, flat and functional; each node carries its fake tensor in ``meta["val"]``. Changed.
        updates: position among the outputs → position among the inputs, of buffers that the section updates.
    """
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    (result,) = (node for node in graph.nodes if node.op == "output")
    outputs = list(result.args[0])
    for made, buffer in updates.items():
        target = placeholders[buffer]
        chain = _chain(outputs[made], target)
        others = [node for number, node in enumerate(outputs) if number != made]
        if chain and _is_safe(graph, chain, target, others):
            for node in chain:
                _rewrite(graph, node, target)
            outputs[made] = target
            result.args = (tuple(outputs),)
    graph.eliminate_dead_code()


def _chain(made: fx.Node, target: fx.Node) -> list[fx.Node]:
    """The operators from ``target`` to ``made`` in order, each working on the one before; empty if there are others."""
    chain: list[fx.Node] = []
    node = made
    while node.target is aten.clone.default:
        node = node.args[0]  # type: ignore[assignment]
    while node is not target:
        if node.op != "call_function" or node.target not in {*_IN_PLACE, *_PARTS} or node.kwargs:
            return []
        chain.append(node)
        node = node.args[0]  # type: ignore[assignment]
    return chain[::-1]


def _is_safe(graph: fx.Graph, chain: list[fx.Node], target: fx.Node, others: list[fx.Node | None]) -> bool:
    """Whether nothing reads an older value after it is overwritten, and none is among the section's other outputs."""
    position = {node: number for number, node in enumerate(graph.nodes)}
    value = target.meta["val"]
    for older, node in zip([target, *chain], chain, strict=False):
        written = node.meta["val"]
        if (written.dtype, written.shape) != (value.dtype, value.shape):
            return False
        shown = [n for n in graph.nodes if n.op != "output" and _shares_memory(n, older)]
        if any(position[user] > position[node] for view in shown for user in view.users):
            return False
    newest = chain[-1]
    shown = [n for n in graph.nodes if n.op != "output" and any(_shares_memory(n, node) for node in (target, newest))]
    return not any(node in shown for node in others)


def _shares_memory(node: fx.Node, other: fx.Node) -> bool:
    first, second = node.meta.get("val"), other.meta.get("val")
    if not isinstance(first, torch.Tensor) or not isinstance(second, torch.Tensor):
        return False
    return bool(first.untyped_storage()._cdata == second.untyped_storage()._cdata)


def _rewrite(graph: fx.Graph, node: fx.Node, target: fx.Node) -> None:
    """Make ``node`` work on ``target`` itself; who read it reads the target."""
    with graph.inserting_before(node):
        if node.target in _IN_PLACE:
            made = graph.call_function(_IN_PLACE[node.target], (target, *node.args[1:]))
            made.meta = dict(node.meta)
        else:
            part = graph.call_function(_PARTS[node.target], (target, *node.args[2:]))
            part.meta = {"val": _PARTS[node.target](target.meta["val"], *node.args[2:])}
            made = graph.call_function(aten.copy_.default, (part, node.args[1]))
            made.meta = {"val": part.meta["val"]}
    node.replace_all_uses_with(target)
    graph.erase_node(node)


__all__ = ["update_in_place"]
