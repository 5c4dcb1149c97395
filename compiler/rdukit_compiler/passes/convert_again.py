"""Let a backward round f32 masters again, rather than keep the bf16 copies that its forward made.

A minimal cut saves the narrower of two values, and so the rounded copy of a weight: half of the parameters' memory,
from forward to backward, beside masters that stay in any case. The backward reads the master instead and rounds it
just before its first use; the copy is freed after its last.

Source: ours.
"""

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import fx

aten = torch.ops.aten

#: What shows the same elements another way.
_VIEWS: Final = frozenset(
    {aten.t.default, aten.transpose.int, aten.permute.default, aten.view.default, aten._unsafe_view.default,
     aten.unsqueeze.default, aten.squeeze.dim, aten.expand.default, aten.detach.default, aten.alias.default}
)  # fmt: skip


def convert_again(forward: fx.GraphModule, backward: fx.GraphModule, masters: Sequence[bool]) -> None:
    """Rewrite ``backward`` to read masters where it reads what ``forward`` only rounded; ``forward`` stays as it is.

    Args:
        forward: placeholders ``primals_1`` …; its last outputs are what it saves.
        backward: placeholders are the saved values by their names, then ``tangents_…``. Changed.
        masters: of each primal, whether nothing changes it between the two and it stays in memory anyway.
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


def _rounding(made: fx.Node) -> list[fx.Node]:
    """The primal and the steps from it to ``made``, if they are one conversion to fewer bytes, and views; else none."""
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
    """The backward makes ``saved`` itself, just before it is read."""
    primal, *steps = chain
    master = placeholders.get(primal.name)
    if master is None:
        with graph.inserting_before(saved):
            master = placeholders[primal.name] = graph.placeholder(primal.name)
        master.meta = dict(primal.meta)
    position = {node: number for number, node in enumerate(graph.nodes)}
    first = min(saved.users, key=lambda user: position[user])
    copies: dict[Any, fx.Node] = {primal: master}
    with graph.inserting_before(first):
        for step in steps:
            copies[step] = graph.node_copy(step, lambda old: copies[old])
    saved.replace_all_uses_with(copies[steps[-1]])
    graph.erase_node(saved)
    del placeholders[saved.name]
