"""A section's results against its portable form and against f64, on its inputs: the wrong values, and their origin.

Three questions, each with its own reference on the same inputs:

1. Does the native library compute what the portable form does? Judged as before a library is used: ``compare``.
2. Where does a NaN or an infinity begin? Operators run one by one; the search goes from the output back to the first
operator that makes one from finite numbers, or a NaN from infinities. 3. Which operator is the first whose result is
off by more than the tolerance? The same operators in f64.

Source: ours.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

import torch

from rdukit.errors import RdukitError
from rdukit.pef.kernel import Argument, KernelGraph, KernelNode, Special
from rdukit_runtime.check.compare import Portable, Results, find_fault
from rdukit_runtime.check.rounding import MOVES, Rounding
from rdukit_runtime.engine.portable import build_portable
from rdukit_runtime.profile.operators import OperatorStep, operator_steps

#: Largest difference from f64 over the largest magnitude that is expected of an operator's result, by precision. Ours.
TOLERANCES: Final = {"f32": 1e-3, "bf16": 5e-2}
_MOVED_RUNS: Final = 4
_NARROW: Final = frozenset({"bfloat16", "float16", "float32"})

Scalars = Mapping[str, float]
Tensors = Sequence[torch.Tensor]


class FaultKind(StrEnum):
    """Kinds of errors of a section."""

    NATIVE = "native differs from portable"
    NAN = "NaN"
    OVERFLOW = "overflow"
    PRECISION = "outside the tolerance"


@dataclass(frozen=True, slots=True)
class SectionFault:
    """A fault of a section. ``tensor``: of the section's outputs or inputs by symbol, or a value inside by its name."""

    kind: FaultKind
    operator: str
    tensor: str
    why: str


@dataclass(frozen=True, slots=True)
class SectionCheck:
    """The check of a section. ``error``: the largest difference of its outputs from f64, over the largest magnitude."""

    faults: tuple[SectionFault, ...]
    error: float | None
    #: Reason why there is no f64 reference; empty: there is one.
    no_reference: str = ""


@dataclass(frozen=True, slots=True)
class _Value:
    """A value inside a section: its maker (None: an input), the maker's inputs, and its non-finite content."""

    step: OperatorStep | None
    has_nan: bool
    has_infinity: bool
    largest: float


def check_section(
    kernel: KernelGraph, names: tuple[Sequence[str], Sequence[str]], inputs: Tensors, results: Sequence[Any],
    scalars: Scalars, tolerance: float, *, is_native: bool = True,
) -> SectionCheck:  # fmt: skip
    """Check a section's results on its inputs.

    Args:
        names: symbols of its inputs, and of its outputs.
        inputs: their values before the section ran. results: its outputs, None for those not kept.
        tolerance: difference of each operator's result from f64.
        is_native: whether a native library made the results; else they are the portable form's own.
    """
    faults: list[SectionFault] = []
    maker = {node.name: node.op for node in kernel.nodes}
    if is_native:
        faults += _find_native(kernel, names[1], inputs, results, scalars, maker)
    values, made = _run_steps(kernel, inputs, scalars)
    shown = dict(zip((spec.name for spec in kernel.inputs), names[0], strict=True))
    shown |= {inner: outer for inner, outer in zip(kernel.outputs, names[1], strict=False) if inner}
    faults += _find_origins(kernel, values, shown)
    try:
        wide = _run_wide(kernel, inputs, scalars)
    except (RdukitError, RuntimeError, TypeError, ValueError) as cause:
        return SectionCheck(tuple(faults), None, f"it does not run in f64: {str(cause).splitlines()[0]}")
    error, fault = _find_imprecise(kernel, made, wide, tolerance, shown)
    if fault is not None and not faults:
        faults.append(fault)
    return SectionCheck(tuple(faults), error)


def _find_native(
    kernel: KernelGraph, outputs: Sequence[str], inputs: Tensors, results: Sequence[Any], scalars: Scalars,
    maker: Mapping[str, str],
) -> list[SectionFault]:  # fmt: skip
    run = build_portable(kernel)
    kept = [number for number, result in enumerate(results) if result is not None]

    def portable() -> Results:
        torch.manual_seed(0)
        made = run([t.clone() for t in inputs], scalars)
        return [made[number] for number in kept]

    def moved() -> list[Results]:
        size = MOVES["bf16" if any(t.dtype == torch.bfloat16 for t in inputs) else "f32"]
        runs = []
        for number in range(_MOVED_RUNS):
            with Rounding(size, False, torch.Generator().manual_seed(number)):
                runs.append(portable())
        return runs

    expected = Portable(portable(), moved)
    faults = []
    for place, number in enumerate(kept):
        one = Portable([expected.results[place]], lambda place=place: [[run[place]] for run in expected.moved])  # type: ignore[misc]
        if (why := find_fault([results[number]], one, is_exact=False)) is not None:
            inner = kernel.outputs[number]
            faults.append(SectionFault(FaultKind.NATIVE, maker.get(inner or "", "input"), outputs[number], why))
    return faults[:1]


def _run_steps(kernel: KernelGraph, inputs: Tensors, scalars: Scalars) -> tuple[dict[str, _Value], dict[str, Any]]:
    """Run operators one by one; return the facts about each value, and the values."""
    made: dict[str, Any] = {spec.name: t.clone() for spec, t in zip(kernel.inputs, inputs, strict=True)}
    known = {name: _describe(None, value) for name, value in made.items()}
    torch.manual_seed(0)
    for step in operator_steps(kernel):
        (value,) = step.call([made[name] for name in step.operands], scalars)
        made[step.name] = value
        known[step.name] = _describe(step, value)
    return known, made


def _describe(step: OperatorStep | None, value: Any) -> _Value:
    if not isinstance(value, torch.Tensor) or not value.is_floating_point() or not value.numel():
        parts = [v for v in value if isinstance(v, torch.Tensor)] if isinstance(value, list | tuple) else []
        each = [_describe(step, part) for part in parts]
        return _Value(step, any(v.has_nan for v in each), any(v.has_infinity for v in each), 0.0)
    finite = value[value.isfinite()]
    largest = float(finite.abs().max()) if finite.numel() else 0.0
    return _Value(step, bool(value.isnan().any()), bool(value.isinf().any()), largest)


def _find_origins(
    kernel: KernelGraph, known: Mapping[str, _Value], shown: Mapping[str, str]
) -> list[SectionFault]:  # fmt: skip
    """Return the origins of the first output that is not finite."""
    for output in kernel.outputs:
        value = known.get(output or "")
        if output is not None and value is not None and (value.has_nan or value.has_infinity):
            return [_origin(output, known, shown, is_nan=value.has_nan)]
    return []


def _origin(name: str, known: Mapping[str, _Value], shown: Mapping[str, str], *, is_nan: bool) -> SectionFault:
    kind = FaultKind.NAN if is_nan else FaultKind.OVERFLOW
    while (step := known[name].step) is not None:
        wanted = [n for n in step.operands if (known[n].has_nan if is_nan else known[n].has_infinity)]
        if not wanted:
            break
        name = wanted[0]
    tensor = shown.get(name, name)
    if step is None:
        return SectionFault(kind, "input", tensor, f"{tensor} had this value before the section ran")
    infinite = [n for n in step.operands if known[n].has_infinity]
    largest = max((known[n].largest for n in step.operands), default=0.0)
    why = f"computed from finite numbers of at most {largest:.3g}"
    if is_nan and infinite:
        source = known[infinite[0]].step
        maker = "an input" if source is None else source.operator
        why = f"computed from infinities in {shown.get(infinite[0], infinite[0])!r}, written by {maker}"
    return SectionFault(kind, step.operator, tensor, why)


def _run_wide(kernel: KernelGraph, inputs: Tensors, scalars: Scalars) -> dict[str, Any]:
    nodes = tuple(
        replace(node, args=tuple(map(_widened, node.args)), kwargs={k: _widened(v) for k, v in node.kwargs.items()})
        for node in kernel.nodes
    )
    wide = KernelGraph(kernel.inputs, nodes, kernel.outputs)
    return _run_steps(wide, [t.double() if t.is_floating_point() else t for t in inputs], scalars)[1]


def _widened(argument: Argument) -> Argument:
    if isinstance(argument, list):
        return [_widened(each) for each in argument]
    if isinstance(argument, Special) and argument.kind == "dtype" and argument.text in _NARROW:
        return Special("dtype", "float64")
    return argument


def _find_imprecise(
    kernel: KernelGraph, made: Mapping[str, Any], wide: Mapping[str, Any], tolerance: float, shown: Mapping[str, str]
) -> tuple[float, SectionFault | None]:  # fmt: skip
    """Return the largest error of the outputs, and the first operator whose error is larger than the tolerance, if an
    output's is.
    """
    error = max((_error(made[name], wide[name]) for name in kernel.outputs if name is not None), default=0.0)
    if error <= tolerance:
        return error, None
    first = next(node for node in kernel.nodes if _error(made[node.name], wide[node.name]) > tolerance)
    return error, _imprecise(first, _error(made[first.name], wide[first.name]), tolerance, shown)


def _imprecise(node: KernelNode, error: float, tolerance: float, shown: Mapping[str, str]) -> SectionFault:
    operator = node.op.removeprefix("aten.").removesuffix(".default")
    why = f"differs from f64 by {error:.2g} of its largest magnitude; expected at most {tolerance:.2g}"
    return SectionFault(FaultKind.PRECISION, operator, shown.get(node.name, node.name), why)


def _error(value: Any, reference: Any) -> float:
    """Return the largest difference over the largest magnitude; infinity if only one of two values is finite."""
    if not isinstance(value, torch.Tensor):
        pairs = zip(value, reference, strict=False) if isinstance(value, list | tuple) else ()
        return max((_error(a, b) for a, b in pairs), default=0.0)
    if not value.is_floating_point() or not value.numel() or value.shape != reference.shape:
        return 0.0
    ours, theirs = value.double(), reference.double()
    if bool((ours.isfinite() != theirs.isfinite()).any()):
        return float("inf")
    both = ours.isfinite()
    size = float(theirs[both].abs().max()) if bool(both.any()) else 0.0
    off = float((ours[both] - theirs[both]).abs().max()) if bool(both.any()) else 0.0
    return off / size if size else off
