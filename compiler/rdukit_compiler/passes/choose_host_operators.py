"""Refuse operators that the device does not have, or mark them to run on the host.

Source: compiler reference 6.2 (the error names operator, module and the nearest function, and offers an opt-in).
"""

from dataclasses import replace
from typing import Final

from rdukit.errors import UnsupportedOperator
from rdukit_compiler.custom_gradients import backward_operators
from rdukit_compiler.ir import ModelGraph, Operator
from rdukit_compiler.supported import is_supported, nearest_supported

#: (condition [] bool, message, token) → token; checks the condition when it runs: see ``backend.guards``.
GUARD: Final = "aten._functional_assert_async.msg"
#: Label of an operator that runs on the host.
HOST_LABEL: Final = "host"


def choose_host_operators(graph: ModelGraph, host_fallback: bool) -> ModelGraph:
    """The graph with every unsupported operator marked to run on the host, and every guard of a condition.

    A marked operator loses its other labels: no fusion rule or directive places it.

    Args:
        host_fallback: whether the user has opted in.
    Raises:
        UnsupportedOperator: the graph has such operators and the user has not; names all of them.
    """
    guards = {operator.name for operator in graph.operators if is_guard(operator)}
    found = [operator for operator in graph.operators if not is_supported(operator)]
    if not found and not guards:
        return graph
    if found and not host_fallback:
        lacking = [o for operator in found for o in (*backward_operators(operator), operator) if not is_supported(o)]
        raise UnsupportedOperator(_refusal(lacking), operators=[operator.name for operator in found])
    names = {operator.name for operator in found} | guards
    return replace(
        graph,
        operators=tuple(
            replace(o, labels={HOST_LABEL: "" if is_guard(o) else nearest_supported(o)}) if o.name in names else o
            for o in graph.operators
        ),
    )


def runs_on_host(operator: Operator) -> bool:
    """Whether ``operator`` was marked to run on the host."""
    return HOST_LABEL in operator.labels


def is_guard(operator: Operator) -> bool:
    """Whether ``operator`` checks in each run what was supposed when forward was traced: see ``backend.guards``."""
    return operator.op == GUARD


def _refusal(found: list[Operator]) -> str:
    first, *others = found
    more = f" ({len(others)} more: {', '.join(_where(o) for o in others[:4])})" if others else ""
    return (
        f"operator {_where(first)} is not supported on the RDU{more}; nearest supported: {nearest_supported(first)}. "
        "To run unsupported operators on the host instead, each in a section of its own, compile with --host-fallback "
        "or set RDUKIT_HOST_FALLBACK=1"
    )


def _where(operator: Operator) -> str:
    name = operator.op if not operator.op.startswith("aten.") else operator.op_type
    return f"{name!r} in module {operator.module or 'forward'!r}"
