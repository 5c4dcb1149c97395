"""Checks of the graph after each pass: the invariants that every stage leaves true, as data.

Structure is always checked (``ir.check_graph``). The other invariants are checked where the setting ``check`` is on
(``RDUKIT_CHECK``): they compare a graph with that of the stage before, and run each operator on tensors without data.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final

import torch

from rdukit.errors import CompileError, InvalidGraph
from rdukit.settings import CHECK, resolve
from rdukit_compiler.capture.meta_rules import FakeMode
from rdukit_compiler.ir import ModelGraph, ValueKind, check_graph
from rdukit_compiler.operators.own_operators import INT8_EMBEDDING, INT8_LINEAR
from rdukit_compiler.operators.supported import is_guard, is_supported, runs_on_host
from rdukit_compiler.passes.assign_precision import RepeatedCalls
from rdukit_compiler.passes.cut_sections import SectionPlan

#: What a pass puts into a graph itself, and the device has.
_QUANTIZED: Final = frozenset({INT8_LINEAR, INT8_EMBEDDING})


class Invariant(StrEnum):
    """Properties of a graph, some of them relative to the stage before."""

    #: Inputs, parameters and buffers are there with kind and shape, and so are outputs and updates.
    ENDS = "ends"
    #: No value that was read, returned or kept is left without a reader.
    READERS = "readers"
    #: Operators that the device lacks, and guards, are marked to run on the host.
    HOST = "host"
    #: Only floating values require a gradient.
    GRADIENTS = "gradients"
    #: Each operator, run without data, makes the shapes that its values have.
    SHAPES = "shapes"


#: Stage of the pipeline, in order → what it leaves true besides the structure.
STAGES: Final[Mapping[str, frozenset[Invariant]]] = {
    "trace": frozenset({Invariant.GRADIENTS}),
    "choose_host_operators": frozenset({Invariant.ENDS, Invariant.READERS, Invariant.HOST}),
    "push_down_slices": frozenset({Invariant.ENDS, Invariant.READERS, Invariant.HOST, Invariant.SHAPES}),
    "choose_compute": frozenset({Invariant.ENDS, Invariant.READERS, Invariant.HOST}),
    "assign_precision": frozenset({Invariant.ENDS, Invariant.READERS, Invariant.HOST, Invariant.GRADIENTS}),
    "join_regions": frozenset(Invariant),
    "quantize_weights": frozenset(Invariant),
}

#: Operators whose result's shape depends on the dtype, which the device chooses.
_BY_DTYPE: Final = frozenset({"aten.view.dtype"})


def check_stage(graph: ModelGraph, stage: str, before: ModelGraph | None = None) -> None:
    """Check what ``stage`` leaves true.

    Args:
        stage: of ``STAGES``. before: the graph that the stage was given, where its invariants compare with that.
    Raises:
        InvalidGraph: an invariant does not hold; the message names the stage.
    """
    check_graph(graph, stage)
    if not resolve(CHECK) or graph is before:
        return
    wanted = STAGES[stage]
    if before is not None and Invariant.ENDS in wanted:
        _check_ends(graph, stage, before)
    if before is not None and Invariant.READERS in wanted:
        _check_readers(graph, stage, before)
    if Invariant.HOST in wanted:
        for operator in graph.operators:
            if runs_on_host(operator) or operator.op in _QUANTIZED:
                continue
            if is_guard(operator) or not is_supported(operator):
                raise InvalidGraph(f"after {stage}: {operator.name!r} ({operator.op}) is not marked to run on the host")
    if Invariant.GRADIENTS in wanted:
        for value in graph.values.values():
            dtype: torch.dtype = getattr(torch, value.dtype)
            if value.requires_grad and not (dtype.is_floating_point or dtype.is_complex):
                raise InvalidGraph(f"after {stage}: {value.name!r} of dtype {value.dtype} requires a gradient")
    if Invariant.SHAPES in wanted:
        _check_shapes(graph, stage)


def check_plans(graph: ModelGraph, plans: Sequence[SectionPlan]) -> None:
    """Check that ``plans`` are a partition of the operators and, where ``check`` is on, in an order that can be run.

    Raises:
        CompileError: they are no partition. InvalidGraph: a plan reads a value that none before it makes.
    """
    planned = sorted(name for plan in plans for name in plan.operators)
    if planned != sorted(operator.name for operator in graph.operators):
        raise CompileError("internal: the section plans are not a partition of the graph's operators")
    if not resolve(CHECK):
        return
    operators = {operator.name: operator for operator in graph.operators}
    known = {value.name for value in graph.values.values() if value.kind is not ValueKind.OPERATOR}
    for plan in plans:
        for name in plan.operators:
            if missing := [read for read in operators[name].inputs if read not in known]:
                raise InvalidGraph(f"after cut_sections: {plan.name!r} reads {missing[0]!r} before a section makes it")
            known.update(operators[name].outputs)


def _check_ends(graph: ModelGraph, stage: str, before: ModelGraph) -> None:
    if graph.outputs != before.outputs or graph.updates != before.updates:
        raise InvalidGraph(f"after {stage}: outputs or updated buffers are not those of the stage before")
    ends = [value.name for value in before.values.values() if value.kind is not ValueKind.OPERATOR]
    for name in (*ends, *before.outputs, *before.updates.values()):
        old, new = before.values[name], graph.values.get(name)
        if new is None or (new.kind, new.shape) != (old.kind, old.shape):
            raise InvalidGraph(f"after {stage}: {old.kind} {name!r} of shape {list(old.shape)} is lost or changed")


def _check_readers(graph: ModelGraph, stage: str, before: ModelGraph) -> None:
    unread = _unread(graph) - _unread(before)
    if lost := sorted(name for name in unread if name in before.values):
        raise InvalidGraph(f"after {stage}: nothing reads {lost[0]!r} any more")


def _unread(graph: ModelGraph) -> set[str]:
    read = {name for operator in graph.operators for name in operator.inputs}
    made = {name for operator in graph.operators for name in operator.outputs}
    return made - read - {*graph.outputs, *graph.updates.values()}


def _check_shapes(graph: ModelGraph, stage: str) -> None:
    with FakeMode(allow_non_fake_inputs=True), torch.no_grad():
        tensors: dict[str, torch.Tensor] = {}
        calls = RepeatedCalls()
        for value in graph.values.values():
            if value.kind is not ValueKind.OPERATOR:
                tensors[value.name] = calls.tensor_like(torch.empty(value.shape, dtype=getattr(torch, value.dtype)))
        for operator in graph.operators:
            calls.run(operator, tensors)
            for name in () if operator.op in _BY_DTYPE else operator.outputs:
                made, listed = tuple(tensors[name].shape), graph.values[name].shape
                if made != listed:
                    raise InvalidGraph(
                        f"after {stage}: {operator.name!r} makes {name!r} of shape {list(made)}, not {list(listed)}"
                    )
