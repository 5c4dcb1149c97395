"""Comparison of a run's trace with the compile's, and the error that names their first difference."""

import hashlib
from collections.abc import Mapping
from typing import Any

from rdukit.errors import PefMismatch
from rdukit.pef.kernel import Argument, KernelGraph, KernelNode, Ref, Special, TensorSpec
from rdukit_compiler.ir import ModelGraph, Operator, Value, ValueKind
from rdukit_compiler.optimizer import OptimizerGroup


def graph_signature(graph: ModelGraph, optimizers: tuple[OptimizerGroup, ...]) -> dict[str, Any]:
    """Return a trace's signature: inputs, parameters, buffers, outputs, operators, optimizers; plain JSON values."""
    maximized = [group.label for group in optimizers if group.maximize]
    return {
        "inputs": _table(graph, ValueKind.INPUT),
        "differentiable": [value.name for value in graph.of_kind(ValueKind.INPUT) if value.requires_grad],
        "parameters": _table(graph, ValueKind.PARAMETER),
        "buffers": _table(graph, ValueKind.BUFFER),
        "outputs": {name: _describe(graph.values[name]) for name in graph.outputs},
        "operators": [operator.op_type for operator in graph.operators],
        "digest": _structure(graph).digest(),
        "optimizers": {group.label: [group.kind, *group.parameters] for group in optimizers},
        **({"maximize": maximized} if maximized else {}),
    }


def call_digests(graph: ModelGraph) -> list[str]:
    """Return a short digest of each operator's call: a PEF keeps them, so that a later trace can name the operator that
    differs.
    """
    return [_digest(operator) for operator in graph.operators]


def check_signature(
    compiled: Mapping[str, Any], traced: Mapping[str, Any], pef: str, with_optimizer: bool,
    graph: ModelGraph | None = None,
) -> None:  # fmt: skip
    """Compare a PEF's signature with a trace's.

    Args:
        with_optimizer: False for a run without optimizer, which a training PEF allows.
        graph: the trace's graph, to name the operator that differs.
    Raises:
        PefMismatch: they differ; the message names the first difference and what the PEF was compiled for.
    """
    for kind in ("inputs", "parameters", "buffers", "outputs"):
        _check_table(kind[:-1], compiled[kind], traced[kind], pef)
    if compiled["digest"] != traced["digest"]:
        reason = _first_difference(compiled, traced, graph)
        raise PefMismatch(f"the traced graph differs from {pef}: {reason}; compile this program again")
    if with_optimizer and compiled["optimizers"] != traced["optimizers"]:
        raise PefMismatch(
            f"the optimizer differs from {pef}: this run has {sorted(traced['optimizers']) or 'none'}, the PEF "
            f"{sorted(compiled['optimizers']) or 'none (inference)'}; compile this program again"
        )
    if with_optimizer and compiled.get("maximize") != traced.get("maximize"):
        raise PefMismatch(
            f"the optimizer differs from {pef}: this run maximizes in {traced.get('maximize') or 'no group'}, the PEF "
            f"in {compiled.get('maximize') or 'no group'}; compile this program again"
        )


def _first_difference(compiled: Mapping[str, Any], traced: Mapping[str, Any], graph: ModelGraph | None) -> str:
    theirs, ours = compiled["operators"], traced["operators"]
    position = next((i for i, (a, b) in enumerate(zip(theirs, ours, strict=False)) if a != b), None)
    if position is not None:
        where = f" (in module {graph.operators[position].module or 'forward'!r})" if graph is not None else ""
        return f"operator {position} is {ours[position]!r}, in the PEF {theirs[position]!r}{where}"
    if len(theirs) != len(ours):
        first = min(len(theirs), len(ours))
        extra = f"{ours[first]!r} is new" if len(ours) > first else f"{theirs[first]!r} is missing"
        return f"it has {len(ours)} operators, the PEF has {len(theirs)}: operator {first}, {extra}"
    calls = compiled.get("calls", ())
    if graph is not None and len(calls) == len(graph.operators):
        for number, operator in enumerate(graph.operators):
            if _digest(operator) != calls[number]:
                return (
                    f"operator {number}, {operator.op_type!r} in module {operator.module or 'forward'!r}, has other "
                    f"arguments or inputs than in the PEF: {_shown(operator)}"
                )
    return "an operator has other arguments, or operators are connected differently"


def _digest(operator: Operator) -> str:
    call = repr((operator.op, operator.args, sorted(operator.kwargs.items())))
    return hashlib.blake2b(call.encode(), digest_size=4).hexdigest()


def _shown(operator: Operator) -> str:
    """Format an operator's call: ``mul(x, 3.0)``."""
    given = [_word(a) for a in operator.args] + [f"{k}={_word(v)}" for k, v in operator.kwargs.items()]
    return f"{operator.op_type}({', '.join(given)})"


def _word(argument: Argument) -> str:
    match argument:
        case Ref(name):
            return name
        case Special(_, text):
            return text
        case list():
            return "[" + ", ".join(_word(item) for item in argument) + "]"
        case _:
            return repr(argument)


def _check_table(kind: str, compiled: Mapping[str, str], traced: Mapping[str, str], pef: str) -> None:
    for name, description in traced.items():
        if name not in compiled:
            raise PefMismatch(
                f"{kind} {name!r} is not in {pef}, which has {_some(compiled)}; compile this program again"
            )
        if compiled[name] != description:
            raise PefMismatch(
                f"{kind} {name!r} is {description}, but {pef} was compiled for {compiled[name]}; "
                "use the compiled batch size and sizes, or compile again"
            )
    if missing := [name for name in compiled if name not in traced]:
        raise PefMismatch(f"{kind} {missing[0]!r} of {pef} is missing from this program; compile it again")


def _some(names: Mapping[str, str]) -> str:
    listed = ", ".join(sorted(names)[:5])
    return f"{listed}, and {len(names) - 5} more" if len(names) > 5 else listed or "none"


def _table(graph: ModelGraph, kind: ValueKind) -> dict[str, str]:
    return {value.name: _describe(value) for value in graph.of_kind(kind)}


def _describe(value: Value) -> str:
    return f"{value.dtype}{list(value.shape)}"


def _structure(graph: ModelGraph) -> KernelGraph:
    """Return the whole graph in the form whose digest compares operators, arguments and connections."""
    nodes: list[KernelNode] = []
    for operator in graph.operators:
        nodes.append(KernelNode(operator.name, operator.op, operator.args, operator.kwargs))
        nodes.extend(
            KernelNode(name, "getitem", (Ref(operator.name), position))
            for position, name in enumerate(operator.outputs)
        )
    inputs = tuple(
        TensorSpec(value.name, value.dtype, value.shape, ())
        for value in graph.of_kind(ValueKind.INPUT, ValueKind.PARAMETER, ValueKind.BUFFER)
    )
    return KernelGraph(inputs, tuple(nodes), (*graph.outputs, *graph.updates.values()))
