"""A section's results against its portable form and against f64, on its inputs: the wrong values, and their origin.

Three questions, each with its own reference on the same inputs:

1. Does the native library compute what the portable form does? Judged as before a library is used: ``compare``.
2. Where does a NaN or an infinity begin? Operators run one by one; the search goes from the output back to the first
operator that makes one from finite numbers, or a NaN from the infinities of a mask. 3. Which operator is the first
whose rounding moves the outputs by more than the tolerance? The same operators in f64.

Source: ours.
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final

import torch

from rdukit.errors import RdukitError
from rdukit.pef.kernel import Argument, KernelGraph, Special, references
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
    #: Outputs by symbol whose infinities are intended.
    masks: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class _Value:
    """A value inside a section: its maker (None: an input), the maker's inputs, and its non-finite content."""

    step: OperatorStep | None
    has_nan: bool
    has_infinity: bool
    largest: float


def check_section(
    kernel: KernelGraph, names: tuple[Sequence[str], Sequence[str]], inputs: Tensors, results: Sequence[Any],
    scalars: Scalars, tolerance: float, *, is_native: bool = True, masks: Set[str] = frozenset(),
) -> SectionCheck:  # fmt: skip
    """Check a section's results on its inputs.

    Args:
        names: symbols of its inputs, and of its outputs.
        inputs: their values before the section ran. results: its outputs, None for those not kept.
        tolerance: difference of each operator's result from f64.
        is_native: whether a native library made the results; else they are the portable form's own.
        masks: inputs by symbol whose infinities are intended.
    """
    faults: list[SectionFault] = []
    maker: dict[str, str] = {}
    for node in kernel.nodes:
        taken = references(node.args)[:1] if node.op == "getitem" else []
        maker[node.name] = maker.get(taken[0], "input") if taken else _short(node.op)
    if is_native:
        faults += _find_native(kernel, names[1], inputs, results, scalars, maker)
    values, made = _run_steps(kernel, inputs, scalars)
    shown = dict(zip((spec.name for spec in kernel.inputs), names[0], strict=True))
    shown |= {inner: outer for inner, outer in zip(kernel.outputs, names[1], strict=False) if inner}
    intended = _find_intended(kernel, values, {inner for inner, outer in shown.items() if outer in masks})
    kept = frozenset(shown[name] for name in kernel.outputs if name in intended)
    faults += _find_origins(kernel, values, shown, intended)
    try:
        wide = _run_wide(kernel, inputs, scalars, {})
    except (RdukitError, RuntimeError, TypeError, ValueError) as cause:
        return SectionCheck(tuple(faults), None, f"it does not run in f64: {str(cause).splitlines()[0]}", kept)
    error = _outputs_error(kernel, made, wide)
    if error > tolerance and not faults:
        faults.append(_find_imprecise(kernel, made, wide, (inputs, scalars), tolerance, shown))
    return SectionCheck(tuple(faults), error, masks=kept)


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


def _run_steps(
    kernel: KernelGraph, inputs: Tensors, scalars: Scalars, instead: Mapping[str, Any] = MappingProxyType({})
) -> tuple[dict[str, _Value], dict[str, Any]]:  # fmt: skip
    """Run operators one by one; return the facts about each value, and the values.

    Args:
        instead: values that replace results of operators, by name.
    """
    made: dict[str, Any] = {spec.name: t.clone() for spec, t in zip(kernel.inputs, inputs, strict=True)}
    known = {name: _describe(None, value) for name, value in made.items()}
    torch.manual_seed(0)
    for step in operator_steps(kernel):
        (value,) = step.call([made[name] for name in step.operands], scalars)
        made[step.name] = instead.get(step.name, value)
        known[step.name] = _describe(step, made[step.name])
    return known, made


def _describe(step: OperatorStep | None, value: Any) -> _Value:
    if not isinstance(value, torch.Tensor) or not value.is_floating_point() or not value.numel():
        parts = [v for v in value if isinstance(v, torch.Tensor)] if isinstance(value, list | tuple) else []
        each = [_describe(step, part) for part in parts]
        return _Value(step, any(v.has_nan for v in each), any(v.has_infinity for v in each), 0.0)
    finite = value[value.isfinite()]
    largest = float(finite.abs().max()) if finite.numel() else 0.0
    return _Value(step, bool(value.isnan().any()), bool(value.isinf().any()), largest)


def _find_intended(kernel: KernelGraph, known: Mapping[str, _Value], masks: Set[str]) -> set[str]:
    """Return values whose infinities are intended: they come from a constant of the kernel, or from ``masks``."""
    found = set(masks)
    for node in kernel.nodes:
        arguments = [*node.args, *node.kwargs.values()]
        infinite = [name for name in references(arguments) if known[name].has_infinity]
        has_constant = any(isinstance(a, Special) and a.kind == "float" and "inf" in a.text for a in arguments)
        if known[node.name].has_infinity and found.issuperset(infinite) and (has_constant or infinite):
            found.add(node.name)
    return found


def _find_origins(
    kernel: KernelGraph, known: Mapping[str, _Value], shown: Mapping[str, str], intended: Set[str]
) -> list[SectionFault]:  # fmt: skip
    """Return the origins of the first output that is not finite and should be."""
    for output in kernel.outputs:
        value = known.get(output or "")
        if output is not None and value is not None and _is_wrong(value, output in intended):
            return [_origin(output, known, shown, intended, is_nan=value.has_nan)]
    return []


def _is_wrong(value: _Value, is_mask: bool) -> bool:
    return value.has_nan or (value.has_infinity and not is_mask)


def _origin(
    name: str, known: Mapping[str, _Value], shown: Mapping[str, str], intended: Set[str], *, is_nan: bool
) -> SectionFault:  # fmt: skip
    kind = FaultKind.NAN if is_nan else FaultKind.OVERFLOW
    while (step := known[name].step) is not None:
        infinite = [n for n in step.operands if known[n].has_infinity and n not in intended]
        wanted = [n for n in step.operands if known[n].has_nan] if is_nan else infinite
        if not wanted:
            break
        name = wanted[0]
    tensor = shown.get(name, name)
    if step is None:
        return SectionFault(kind, "input", tensor, f"{tensor} had this value before the section ran")
    if is_nan and infinite:
        first = _origin(infinite[0], known, shown, intended, is_nan=False)
        return replace(first, why=f"{first.why}; {step.operator} makes a NaN of it in {tensor!r}")
    masked = [n for n in step.operands if known[n].has_infinity]
    largest = max((known[n].largest for n in step.operands), default=0.0)
    why = f"computed from finite numbers of at most {largest:.3g}"
    if is_nan and masked:
        source = known[masked[0]].step
        maker = "an input" if source is None else source.operator
        why = f"computed from infinities in {shown.get(masked[0], masked[0])!r}, written by {maker}"
    return SectionFault(kind, step.operator, tensor, why)


def _run_wide(
    kernel: KernelGraph, inputs: Tensors, scalars: Scalars, instead: Mapping[str, Any]
) -> dict[str, Any]:  # fmt: skip
    """Run the operators in f64; ``instead`` replaces results."""
    nodes = tuple(
        replace(node, args=tuple(map(_widened, node.args)), kwargs={k: _widened(v) for k, v in node.kwargs.items()})
        for node in kernel.nodes
    )
    wide = KernelGraph(kernel.inputs, nodes, kernel.outputs)
    return _run_steps(wide, [_in_f64(t) for t in inputs], scalars, instead)[1]


def _in_f64(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_in_f64(each) for each in value]
    return value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def _widened(argument: Argument) -> Argument:
    if isinstance(argument, list):
        return [_widened(each) for each in argument]
    if isinstance(argument, Special) and argument.kind == "dtype" and argument.text in _NARROW:
        return Special("dtype", "float64")
    return argument


def _outputs_error(kernel: KernelGraph, made: Mapping[str, Any], wide: Mapping[str, Any]) -> float:
    return max((_error(made[name], wide[name]) for name in kernel.outputs if name is not None), default=0.0)


def _find_imprecise(
    kernel: KernelGraph, made: Mapping[str, Any], wide: Mapping[str, Any], given: tuple[Tensors, Scalars],
    tolerance: float, shown: Mapping[str, str],
) -> SectionFault:  # fmt: skip
    """Return the fault of the first operator whose rounding puts an output outside the tolerance.

    The operators up to it run as they are, and those after it in f64. A result may be near its reference and still
    be the cause: a difference of large numbers shows later what their rounding lost. The search halves the range, so
    the operator before the one that it names leaves the outputs right.
    """
    right, wrong = -1, len(kernel.nodes) - 1
    error = _outputs_error(kernel, made, wide)
    while wrong - right > 1:
        middle = (right + wrong) // 2
        instead = {node.name: _in_f64(made[node.name]) for node in kernel.nodes[: middle + 1]}
        found = _outputs_error(kernel, _run_wide(kernel, *given, instead), wide)
        if found > tolerance:
            wrong, error = middle, found
        else:
            right = middle
    node = kernel.nodes[wrong]
    operator = _short(node.op)
    why = f"its rounding moves outputs by {error:.2g} of their largest magnitude; expected at most {tolerance:.2g}"
    return SectionFault(FaultKind.PRECISION, operator, shown.get(node.name, node.name), why)


def _short(op: str) -> str:
    """Return an operator's name as it is shown."""
    return op.removeprefix("aten.").removesuffix(".default")


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
