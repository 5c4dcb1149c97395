"""Operators of a model graph with a gradient from the program: ``rdukit.custom_function``.

Such an operator returns the results of a custom function's forward, with the gradient of its backward. The backward is
a graph in text among the operator's arguments, so that a comparison of operators includes it.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from rdukit.pef.kernel import KernelGraph, KernelNode, Ref, kernel_from_json, packed_spec, parse_operator
from rdukit_compiler.ir import ModelGraph, Operator, Value

#: (outputs, entries, saved, backward, refusal): forward's results, its differentiable arguments, the values that
#: backward reads besides incoming gradients, the backward as text, and the reason if there is none.
CUSTOM_FUNCTION: Final = "rdukit.custom_function.default"

_GETITEM: Final = "getitem"


def backward_text(graph: ModelGraph, inputs: Sequence[str], gradients: Sequence[str | None]) -> str:
    """Return a backward as text: ``inputs`` are saved values, then incoming gradients; None is no gradient."""
    nodes: list[KernelNode] = []
    for operator in graph.operators:
        nodes.append(KernelNode(operator.name, operator.op, operator.args, operator.kwargs))
        nodes.extend(
            KernelNode(name, _GETITEM, (Ref(operator.name), place)) for place, name in enumerate(operator.outputs)
        )
    specs = tuple(packed_spec(name, graph.values[name].dtype, graph.values[name].shape) for name in inputs)
    return KernelGraph(specs, tuple(nodes), tuple(gradients)).to_json().decode()


def pass_on_text(value: Value) -> str:
    """Return the backward that returns its only incoming gradient unchanged."""
    return KernelGraph((packed_spec("g", value.dtype, value.shape),), (), ("g",)).to_json().decode()


def backward_operators(operator: Operator) -> Iterator[Operator]:
    """Yield the operators of a custom function's backward; none for any other operator."""
    if operator.op == CUSTOM_FUNCTION and isinstance(text := operator.args[3], str) and text:
        yield from operators_of(kernel_from_json(text.encode()), operator.module)


def operators_of(graph: KernelGraph, module: str) -> Iterator[Operator]:
    """Yield the calls of a backward, each with its results' values."""
    made: dict[str, list[str]] = {}
    for node in graph.nodes:
        if node.op == _GETITEM and isinstance(node.args[0], Ref) and node.args[0].name in made:
            made[node.args[0].name].append(node.name)
        else:
            made[node.name] = []
    for node in graph.nodes:
        if node.name in made:
            word = parse_operator(node.op).word
            yield Operator(node.name, node.op, word, node.args, node.kwargs, tuple(made[node.name]), module)
