"""What the default fusion rules leave of a language model: operators with arithmetic that no rule takes."""

from collections import Counter
from typing import Final

from rdukit_compiler.cost.work import Shape, operator_work
from rdukit_compiler.ir import ModelGraph, Operator
from rdukit_compiler.patterns.match import match_rules
from rdukit_compiler.rules import load_default_rules
from rdukit_zoo.registry import get_model, model_names
from sambaflow import samba
from sambaflow.tracing.tracer import trace_model
from support.zoo_parity import SMALL_SIZES

LAYERS: Final = 8
#: Models of text: those with layers whose data are tokens. Of encoder-decoders the rules leave more: the sums behind
#: feed-forward layers, and what biases by distance are made of.
LANGUAGE: Final = tuple(
    name for name in model_names()
    if "vocabulary" in get_model(name).sizes and get_model(name).task not in {"text-to-text", "speech-to-text"}
)  # fmt: skip


def unmatched_operators(name: str) -> tuple[Counter[str], int]:
    """Trace a training of a model with ``LAYERS`` layers.

    Returns:
        Operator → how many with arithmetic no rule takes; and how many with arithmetic there are.
    """
    entry = get_model(name)
    sizes = entry.check_sizes({**SMALL_SIZES[name][0], "layers": LAYERS})
    samba.session.reset()
    model = entry.build(**sizes)
    samba.from_torch_model_(model)
    graph = trace_model(model, entry.make_inputs(2, **sizes), name).graph
    taken = {word for match in match_rules(graph, load_default_rules()) for word in match.operators}
    carrying = [operator for operator in graph.operators if _flops(graph, operator)]
    return Counter(operator.op_type for operator in carrying if operator.name not in taken), len(carrying)


def _flops(graph: ModelGraph, operator: Operator) -> int:
    def shapes(names: tuple[str, ...]) -> list[Shape]:
        return [(tuple(graph.values[name].shape), graph.values[name].dtype) for name in names]

    return operator_work(operator.op, shapes(operator.inputs), shapes(operator.outputs)).flops
