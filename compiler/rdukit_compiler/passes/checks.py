"""Checks between the stages of a compile: a table of the invariants that hold after every stage.

A graph's structure (``ir.check_graph``) is always checked, and so is that each operator is in one plan. The other
invariants are checked if the setting ``check`` is on (``RDUKIT_CHECK``): they compare a graph with that of the stage
before, run each operator on tensors without data, and follow the assembled schedule.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final

import torch

from rdukit.errors import CompileError, InvalidGraph, PefCorrupt
from rdukit.pef.file import check_bound
from rdukit.pef.kernel import KernelGraph
from rdukit.pef.memory import PERSISTENT
from rdukit.pef.model import Pef, int4_shape
from rdukit.settings import CHECK, resolve
from rdukit_compiler.capture.meta_rules import FakeMode
from rdukit_compiler.ir import ModelGraph, ValueKind, check_graph
from rdukit_compiler.operators.naming import dtype_name
from rdukit_compiler.operators.own_operators import INT4_LINEAR, INT8_EMBEDDING, INT8_LINEAR
from rdukit_compiler.operators.supported import is_guard, is_supported, runs_on_host
from rdukit_compiler.passes.assign_precision import Precision, RepeatedCalls
from rdukit_compiler.passes.cut_sections import SectionPlan

#: Operators that passes add, and that the device supports.
_QUANTIZED: Final = frozenset({INT4_LINEAR, INT8_LINEAR, INT8_EMBEDDING})


class Invariant(StrEnum):
    """Properties of a stage's result, some of them relative to its input."""

    #: Inputs, parameters and buffers keep their kind and shape; outputs and updates stay.
    ENDS = "ends"
    #: A value that was read, returned or kept still has a reader.
    READERS = "readers"
    #: Operators that the device lacks, and guards, are marked to run on the host.
    HOST = "host"
    #: Only floating values require a gradient.
    GRADIENTS = "gradients"
    #: Each operator, run without data, returns its values' shapes.
    SHAPES = "shapes"
    #: Each operator, run without data on the device's dtypes, returns its values' dtypes.
    DTYPES = "dtypes"
    #: Every operator is in exactly one section plan.
    PARTITION = "partition"
    #: Plans read only results of earlier plans, so no path leaves a plan and re-enters it.
    ORDER = "order"
    #: The symbols of a section have the dtypes and shapes of its kernel.
    BINDINGS = "bindings"
    #: A section reads only symbols that are loaded at the start, or that earlier sections of its schedule write.
    SCHEDULE = "schedule"


#: Invariants that hold from a stage to the next.
_KEPT: Final = frozenset({Invariant.ENDS, Invariant.READERS, Invariant.HOST})
#: Further invariants once values have the device's dtypes.
_TYPED: Final = frozenset({Invariant.GRADIENTS, Invariant.SHAPES, Invariant.DTYPES})

#: Stage of the pipeline, in order → invariants, other than structure, that hold after it.
STAGES: Final[Mapping[str, frozenset[Invariant]]] = {
    "trace": frozenset({Invariant.GRADIENTS}),
    "choose_host_operators": _KEPT,
    "push_down_slices": _KEPT | {Invariant.SHAPES},
    "choose_compute": _KEPT,
    "assign_precision": _KEPT | _TYPED,
    "join_regions": _KEPT | _TYPED,
    "quantize_weights": _KEPT | _TYPED,
    "place_on_chips": frozenset({Invariant.ENDS, Invariant.HOST}) | _TYPED,
    "cut_sections": frozenset({Invariant.PARTITION, Invariant.ORDER}),
    "assemble": frozenset({Invariant.BINDINGS, Invariant.SCHEDULE}),
}

#: Operators whose result's shape depends on the dtype, which the device chooses.
_BY_DTYPE: Final = frozenset({"aten.view.dtype"})


def check_stage(
    graph: ModelGraph, stage: str, before: ModelGraph | None = None, precision: Precision | None = None
) -> None:  # fmt: skip
    """Check the invariants that hold for a graph after ``stage``.

    Args:
        stage: of ``STAGES``. before: the stage's input, for invariants that compare with it.
        precision: the dtype in which operators read the device's tensors; for stages that assign device dtypes.
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
        _check_shapes(graph, stage, precision if Invariant.DTYPES in wanted else None)


def check_plans(graph: ModelGraph, plans: Sequence[SectionPlan]) -> None:
    """Check the result of ``cut_sections``: always the partition, and with ``check`` the order.

    Raises:
        CompileError: the plans are not a partition. InvalidGraph: a plan reads a value before it is computed.
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


def check_assembly(pef: Pef, kernels: Mapping[str, KernelGraph]) -> None:
    """Check the sections of ``assemble`` and their kernels (by digest), if ``check`` is on.

    Raises:
        InvalidGraph: a symbol does not fit its section's kernel, or is read before it is written.
    """
    if not resolve(CHECK):
        return
    try:
        for section in pef.sections:
            check_bound(pef, section, kernels[section.kernel])
    except PefCorrupt as cause:
        raise InvalidGraph(f"after assemble: {cause.message}") from cause
    for graph in pef.graphs.values():
        known = {symbol.name for symbol in pef.symbols.values() if symbol.kind in PERSISTENT}
        for section in (pef.sections[number] for number in graph.schedule):
            if missing := [read for read in section.inputs if read not in known]:
                raise InvalidGraph(
                    f"after assemble: section {section.name!r} of graph {graph.name!r} reads {missing[0]!r} before a "
                    "section makes it"
                )
            known.update(section.outputs)


def _check_ends(graph: ModelGraph, stage: str, before: ModelGraph) -> None:
    if graph.outputs != before.outputs or graph.updates != before.updates:
        raise InvalidGraph(f"after {stage}: outputs or updated buffers are not those of the stage before")
    ends = [value.name for value in before.values.values() if value.kind is not ValueKind.OPERATOR]
    for name in (*ends, *before.outputs, *before.updates.values()):
        old, new = before.values[name], graph.values.get(name)
        is_packed = stage == "quantize_weights" and new is not None and new.dtype == "uint8" != old.dtype
        shape = int4_shape(*old.shape) if is_packed else old.shape
        if new is None or (new.kind, new.shape) != (old.kind, shape):
            raise InvalidGraph(f"after {stage}: {old.kind} {name!r} of shape {list(old.shape)} is lost or changed")


def _check_readers(graph: ModelGraph, stage: str, before: ModelGraph) -> None:
    unread = _unread(graph) - _unread(before)
    if lost := sorted(name for name in unread if name in before.values):
        raise InvalidGraph(f"after {stage}: nothing reads {lost[0]!r} any more")


def _unread(graph: ModelGraph) -> set[str]:
    read = {name for operator in graph.operators for name in operator.inputs}
    made = {name for operator in graph.operators for name in operator.outputs}
    return made - read - {*graph.outputs, *graph.updates.values()}


def _check_shapes(graph: ModelGraph, stage: str, precision: Precision | None) -> None:
    """Check, without data, that each operator returns the listed shapes and, with ``precision``, the listed dtypes."""
    with FakeMode(allow_non_fake_inputs=True), torch.no_grad():
        tensors: dict[str, torch.Tensor] = {}
        calls = RepeatedCalls()
        for value in graph.values.values():
            if value.kind is not ValueKind.OPERATOR:
                held: torch.dtype = getattr(torch, value.dtype)
                read = precision.compute_dtype(value) if precision is not None else held
                tensors[value.name] = calls.tensor_like(torch.empty(value.shape, dtype=read))
        for operator in graph.operators:
            calls.run(operator, tensors)
            for name in operator.outputs:
                made, listed = tensors[name], graph.values[name]
                if tuple(made.shape) != listed.shape and operator.op not in _BY_DTYPE:
                    raise InvalidGraph(
                        f"after {stage}: {operator.name!r} makes {name!r} of shape {list(made.shape)}, not "
                        f"{list(listed.shape)}"
                    )
                if precision is not None and dtype_name(made.dtype) != listed.dtype:
                    raise InvalidGraph(
                        f"after {stage}: {operator.name!r} makes {name!r} in {dtype_name(made.dtype)}, not "
                        f"{listed.dtype}"
                    )
