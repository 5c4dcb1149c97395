"""Split a joint graph by saving every value that the backward reads: right for any graph, optimal for none.

Used where torch's minimal cut refuses a graph.
"""

from typing import Any

from torch import fx


def split_saving(joint: fx.GraphModule, forward_outputs: int) -> tuple[fx.GraphModule, fx.GraphModule]:
    """The forward returns its outputs and then the saved values; the backward takes those, then the tangents.

    Args:
        joint: placeholders ``primals_…`` and then ``tangents_…``; the first ``forward_outputs`` outputs are forward's.
    """
    (result,) = [node for node in joint.graph.nodes if node.op == "output"]
    leaving: list[Any] = list(result.args[0])
    made, gradients = leaving[:forward_outputs], leaving[forward_outputs:]
    placeholders = [node for node in joint.graph.nodes if node.op == "placeholder"]
    primals = [node for node in placeholders if node.name.startswith("primals_")]
    tangents = [node for node in placeholders if node.name.startswith("tangents_")]
    forward = _ancestors(made)
    # A value of several tensors is saved through the tensors that are taken out of it.
    forward |= {n for n in joint.graph.nodes if _takes_one(n) and n.args[0] in forward}
    backward = [n for n in joint.graph.nodes if n in _ancestors(gradients) - forward and n.op == "call_function"]
    read = dict.fromkeys(i for node in [*backward] for i in node.all_input_nodes)
    read |= dict.fromkeys(n for n in gradients if isinstance(n, fx.Node))
    saved = [n for n in read if n in forward or n in primals]
    inside = [n for n in joint.graph.nodes if n in forward and n.op == "call_function"]
    return (
        _graph(joint, primals, inside, [*made, *saved]),
        _graph(joint, [*saved, *tangents], backward, gradients),
    )


def _ancestors(nodes: list[Any]) -> set[fx.Node]:
    found: set[fx.Node] = set()
    pending = [node for node in nodes if isinstance(node, fx.Node)]
    while pending:
        node = pending.pop()
        if node not in found:
            found.add(node)
            pending.extend(node.all_input_nodes)
    return found


def _takes_one(node: fx.Node) -> bool:
    return node.op == "call_function" and getattr(node.target, "__name__", "") == "getitem"


def _graph(joint: fx.GraphModule, inputs: list[fx.Node], nodes: list[fx.Node], outputs: list[Any]) -> fx.GraphModule:
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in inputs:
        copies[node] = graph.placeholder(node.name)
        copies[node].meta = dict(node.meta)
    for node in nodes:
        if node not in copies:
            copies[node] = graph.node_copy(node, lambda old: copies[old])
    graph.output(tuple(copies[n] if isinstance(n, fx.Node) else n for n in outputs))
    return fx.GraphModule(joint, graph)
