"""Rewrites of a traced section's graph: buffers updated in place, rounded weights rematerialized in the backward.

A model graph has no in-place operators: ``cache.index_copy_(2, position, keys)`` returns a new cache, and the
section's kernel would copy all of it to change one row. If the old value is not read afterwards, the kernel uses the
in-place operator on its input, and returns that input.

A minimal cut saves the narrower of two values, and therefore the rounded copies of weights. From forward to backward,
they take half of the parameters' memory, in addition to the masters. The backward reads the master instead and rounds
it just before its first use; the copy is freed after its last.

Source: ours.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import torch
from torch import fx

from rdukit_compiler.capture.record_nodes import shares_memory

aten = torch.ops.aten

#: Operators that put values into a copy of their first argument, and their in-place forms.
_IN_PLACE: Final[dict[Any, Any]] = {
    aten.index_copy.default: aten.index_copy_.default,
    aten.index_put.default: aten.index_put_.default,
    aten.scatter.src: aten.scatter_.src,
    aten.scatter.value: aten.scatter_.value,
}
#: Operators that put values into a part of a copy of their first argument → operator that returns a view of the part.
_PARTS: Final[dict[Any, Any]] = {
    aten.slice_scatter.default: aten.slice.Tensor,
    aten.select_scatter.default: aten.select.int,
}

#: Dtypes of weights of few bits.
_NARROW: Final = frozenset({torch.int8, torch.uint8, torch.bfloat16})
#: Operators that show the same elements in another shape.
_VIEWS: Final = frozenset(
    {aten.t.default, aten.transpose.int, aten.permute.default, aten.view.default, aten._unsafe_view.default,
     aten.unsqueeze.default, aten.squeeze.dim, aten.expand.default, aten.detach.default, aten.alias.default}
)  # fmt: skip


def update_in_place(graph: fx.Graph, updates: Mapping[int, int]) -> None:
    """Rewrite the operators from an input to its new value, if all of them can work in place.

    Args:
        graph: a section's graph, flat and functional; each node carries its fake tensor in ``meta["val"]``. Changed.
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
    """Return the operators from ``target`` to ``made`` in order, each applied to the one before; empty if there is
    another operator between.
    """
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
    """Return whether older values are not read after they are overwritten, and are not among the section's other
    outputs.
    """
    position = {node: number for number, node in enumerate(graph.nodes)}
    value = target.meta["val"]
    for older, node in zip([target, *chain], chain, strict=False):
        written = node.meta["val"]
        if (written.dtype, written.shape) != (value.dtype, value.shape):
            return False
        shown = [n for n in graph.nodes if n.op != "output" and shares_memory(n, older)]
        if any(position[user] > position[node] for view in shown for user in view.users):
            return False
    newest = chain[-1]
    shown = [n for n in graph.nodes if n.op != "output" and any(shares_memory(n, node) for node in (target, newest))]
    return not any(node in shown for node in others)


def _rewrite(graph: fx.Graph, node: fx.Node, target: fx.Node) -> None:
    """Make ``node`` work on ``target`` itself; its readers now read the target."""
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


def rematerialize_casts(forward: fx.GraphModule, backward: fx.GraphModule, masters: Sequence[bool]) -> None:
    """Rewrite ``backward`` to read masters instead of values that ``forward`` only rounded; ``forward`` does not
    change.

    Args:
        forward: placeholders ``primals_1`` …; its last outputs are the saved values.
        backward: placeholders are the saved values by their names, then ``tangents_…``. Changed.
        masters: for each primal, whether it stays in memory, unchanged, between the two.
    """
    (result,) = (node for node in forward.graph.nodes if node.op == "output")
    made = {node.name: node for node in result.args[0] if isinstance(node, fx.Node)}
    kept = {f"primals_{position + 1}" for position, is_master in enumerate(masters) if is_master}
    placeholders = {node.name: node for node in backward.graph.nodes if node.op == "placeholder"}
    for name, placeholder in list(placeholders.items()):
        chain = _rounding(made[name]) if name in made else []
        if chain and chain[0].name in kept:
            _replace(backward.graph, placeholder, chain, placeholders)
    backward.recompile()


def rematerialize_weights(forward: fx.GraphModule, backward: fx.GraphModule, buffers: Sequence[bool]) -> None:
    """Rewrite ``backward`` to compute wide weights from their narrow buffers again instead of keeping them.

    A frozen weight of few bits is widened for a product. Kept from forward to backward, the wide ones of all layers
    would take the memory that the narrow ones save. Source: ours; as QLoRA does.

    Args:
        forward, backward: as in ``rematerialize_casts``.
        buffers: for each primal, whether it is a buffer that stays unchanged between the two.
    """
    (result,) = (node for node in forward.graph.nodes if node.op == "output")
    made = {node.name: node for node in result.args[0] if isinstance(node, fx.Node)}
    kept = {f"primals_{position + 1}" for position, is_buffer in enumerate(buffers) if is_buffer}
    placeholders = {node.name: node for node in backward.graph.nodes if node.op == "placeholder"}
    for name, placeholder in list(placeholders.items()):
        chain = _widening(made[name], kept) if name in made else []
        if chain:
            _replace(backward.graph, placeholder, chain, placeholders)
    backward.recompile()


def _widening(made: fx.Node, kept: Collection[str]) -> list[fx.Node]:
    """Return the buffers and the steps from them to ``made`` in order, if it is computed from narrow ones alone and
    takes at least twice their memory; otherwise nothing.
    """
    if made.op != "call_function":
        return []
    needed, pending = {made}, [made]
    while pending:
        node = pending.pop()
        if node.op == "placeholder" and node.name not in kept:
            return []
        pending.extend(set(node.all_input_nodes) - needed)
        needed.update(node.all_input_nodes)
    sources: list[torch.Tensor] = [node.meta["val"] for node in needed if node.op == "placeholder"]
    wide: torch.Tensor = made.meta["val"]
    if not any(source.dtype in _NARROW and source.dim() == 2 for source in sources) or wide.dim() != 2:
        return []
    is_saved = 2 * sum(source.nbytes for source in sources) <= wide.nbytes
    return [node for node in made.graph.nodes if node in needed] if is_saved else []


def rematerialize_joins(forward: fx.GraphModule, backward: fx.GraphModule) -> None:
    """Rewrite ``backward`` to join the section's inputs itself instead of reading joined values from ``forward``.

    The parts are in memory anyway, each on the chip that made it; a joined copy on every chip would outlive forward.

    Args:
        forward, backward: as in ``rematerialize_casts``.
    """
    (result,) = (node for node in forward.graph.nodes if node.op == "output")
    made = {node.name: node for node in result.args[0] if isinstance(node, fx.Node)}
    placeholders = {node.name: node for node in backward.graph.nodes if node.op == "placeholder"}
    for name, placeholder in list(placeholders.items()):
        chain = _joining(made[name]) if name in made else []
        if any(step.target is aten.cat.default for step in chain):
            _replace(backward.graph, placeholder, chain, placeholders)
    backward.recompile()


def _joining(made: fx.Node) -> list[fx.Node]:
    """Return the primals and the steps from them to ``made`` in order, if these are only joins and views; otherwise
    nothing.
    """
    needed, pending = {made}, [made]
    while pending:
        node = pending.pop()
        if node.op == "call_function" and node.target not in {*_VIEWS, aten.cat.default}:
            return []
        pending.extend(set(node.all_input_nodes) - needed)
        needed.update(node.all_input_nodes)
    return [node for node in made.graph.nodes if node in needed]


def _rounding(made: fx.Node) -> list[fx.Node]:
    """Return the primal and the steps from it to ``made``, if they are one conversion to fewer bytes, and views;
    otherwise nothing.
    """
    steps: list[fx.Node] = []
    node = made
    while node.op == "call_function" and (node.target in _VIEWS or node.target is aten._to_copy.default):
        steps.append(node)
        (node,) = node.all_input_nodes
    conversions = [step for step in steps if step.target is aten._to_copy.default]
    if node.op != "placeholder" or len(conversions) != 1:
        return []
    narrowed: torch.Tensor = conversions[0].meta["val"]
    return [node, *reversed(steps)] if narrowed.itemsize < node.meta["val"].itemsize else []


def _replace(graph: fx.Graph, saved: fx.Node, chain: Sequence[fx.Node], placeholders: dict[str, fx.Node]) -> None:
    """Make the backward compute ``saved`` itself, just before it is read.

    Args:
        chain: primals and steps, in order; the last step returns it.
    """
    copies: dict[Any, fx.Node] = {}
    for primal in (node for node in chain if node.op == "placeholder"):
        if primal.name not in placeholders:
            with graph.inserting_before(saved):
                placeholders[primal.name] = graph.placeholder(primal.name)
            placeholders[primal.name].meta = dict(primal.meta)
        copies[primal] = placeholders[primal.name]
    position = {node: number for number, node in enumerate(graph.nodes)}
    first = min(saved.users, key=lambda user: position[user])
    with graph.inserting_before(first):
        for step in chain:
            if step.op != "placeholder":
                copies[step] = graph.node_copy(step, lambda old: copies[old])
    saved.replace_all_uses_with(copies[chain[-1]])
    graph.erase_node(saved)
    del placeholders[saved.name]
