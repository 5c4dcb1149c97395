"""The verdict on a unit: both forms run on the same drawn inputs, and each backward uses its own forward's saved
values.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cache
from typing import Final

import torch

from rdukit.pef.kernel import KernelGraph, TensorSpec
from rdukit.pef.units import KernelVerdict, Outcome, Unit
from rdukit_runtime.check.alternatives import Elsewhere, Inside
from rdukit_runtime.check.compare import (
    Portable,
    Results,
    find_fault,
    finite_in_both,
    finite_in_portable,
    settle_overflows,
    settle_places,
)
from rdukit_runtime.check.draws import ALL_SETS, FEW_SETS, GuardedTensor, InputSet, draw, draw_gradient, guard
from rdukit_runtime.check.exactness import adds_nothing, is_exact_on_whole_numbers, keeps_signs
from rdukit_runtime.check.roles import InputRole, find_roles
from rdukit_runtime.check.rounding import MOVES, InDouble, Rounding
from rdukit_runtime.engine.portable import Kernel, build_portable

#: Seconds of processor time of the portable form up to which all sets, two sets, or one set are tried.
ALL_S: Final = 0.005
FEW_S: Final = 2.0
ONE_S: Final = 10.0
#: Number of perturbed runs of the portable form, and their number for units longer than ``FEW_S``.
_MOVED_RUNS: Final = 6
_FEW_MOVED_RUNS: Final = 2
#: Number of perturbed runs more before a section is refused: six may miss a comparison that rounding decides.
_MORE_RUNS: Final = 24
#: Sets of numbers whose sums or products may overflow, and the places of their results that are compared. Uneven
#: numbers are those of weights: a result that is finite portably has to be finite.
_LARGE: Final = {"extreme": finite_in_both, "wide": finite_in_both, "uneven": finite_in_portable}


@dataclass(frozen=True, slots=True)
class Side:
    """Kernels of a side: forward, and backward if there is one."""

    forward: Kernel
    backward: Kernel | None


@dataclass(frozen=True, slots=True)
class Drawn:
    """Set of inputs of the forward, and of gradients that arrive at the backward."""

    inputs: tuple[torch.Tensor, ...]
    arriving: tuple[torch.Tensor, ...]


@dataclass(frozen=True, slots=True)
class _Ran:
    """Results of one side, its inputs after the run, and the numbers of results that share memory with an input."""

    results: Results
    shared: frozenset[int]


class _Judge:
    def __init__(self, unit: Unit, native: Side, clock: Callable[[], float]) -> None:
        self._unit = unit
        self._clock = clock
        self._native = native
        self._portable = Side(
            build_portable(unit.forward), None if unit.backward is None else build_portable(unit.backward)
        )
        self._roles = find_all_roles(unit)
        self._whole = all(is_exact_on_whole_numbers(kernel) for kernel in unit.kernels)
        self._adds_nothing = all(adds_nothing(kernel) for kernel in unit.kernels)
        self._signs = all(keeps_signs(kernel) for kernel in unit.kernels)

    def verdict(self, sets: Sequence[InputSet], few: Sequence[InputSet]) -> KernelVerdict:
        done = dropped = 0
        reason, pending, runs = "", list(sets), _MOVED_RUNS
        while pending:
            chosen = pending.pop(0)
            drawn = self._draw(chosen)
            began = self._clock()
            try:
                expected = self._run(self._portable, drawn, chosen)
            except Exception as refusal:  # noqa: BLE001 - whatever an operator says of inputs that it does not take
                if not chosen.is_narrow:  # places that are computed from whole inputs may lie outside
                    pending.insert(0, replace(chosen, is_narrow=True))
                    continue
                dropped += 1
                reason = f"{type(refusal).__name__}: {str(refusal).splitlines()[0] if str(refusal) else ''}"
                continue
            took_s = self._clock() - began
            if done == 0 and ALL_S < took_s <= FEW_S:  # once more: the first run sets things up
                began = self._clock()
                expected = self._run(self._portable, drawn, chosen)
                took_s = self._clock() - began
            if took_s > ONE_S:
                return KernelVerdict(Outcome.NOT_JUDGED, f"too large to check: its portable form takes {took_s:.1f} s")
            if took_s > FEW_S:
                pending, few, runs = [], (), _FEW_MOVED_RUNS
            fault = self._fault(drawn, chosen, expected, runs)
            done += 1
            if fault is not None:
                return KernelVerdict(Outcome.REFUSED, f"{fault} ({chosen})", done, dropped)
            if done == 1 and took_s > ALL_S:
                pending = [each for each in few if each.seed != chosen.seed]
        if done == 0:
            return KernelVerdict(Outcome.NOT_JUDGED, f"its portable form rejects all inputs: {reason}", 0, dropped)
        return KernelVerdict(Outcome.RIGHT, "", done, dropped)

    def _draw(self, chosen: InputSet) -> Drawn:
        unit = self._unit
        inputs = tuple(draw(spec, self._roles.get(spec.name), chosen, n) for n, spec in enumerate(unit.forward.inputs))
        return Drawn(inputs, tuple(draw_gradient(spec, chosen, n) for n, spec in enumerate(_arriving(unit))))

    def _run(
        self, side: Side, drawn: Drawn, chosen: InputSet, around: AbstractContextManager[object] | None = None
    ) -> _Ran:
        """Run a side on copies of the inputs.

        Args:
            around: context of running kernels; the layout of inputs is outside of it and equal in each run.
        Raises:
            Written: it wrote beyond a tensor.
        """
        torch.manual_seed(chosen.seed)
        unit = self._unit
        given = _place(unit.forward.inputs, drawn.inputs)
        within = nullcontext() if around is None else around
        with within:
            outputs = [t for t in side.forward(tuple(g.tensor for g in given), {}) if t is not None]
        results, shared = [t.detach().clone() for t in outputs], _find_shared(outputs, given)
        guarded = list(given)
        if side.backward is not None and unit.backward is not None:
            from_forward = {"input": [g.tensor for g in given], "output": outputs}
            arriving = iter(_place(_arriving(unit), drawn.arriving))
            read = [
                next(arriving) if source is None else guard(from_forward[source[0]][source[1]])
                for source in unit.sources
            ]
            guarded += read
            with within:
                made = [t for t in side.backward(tuple(g.tensor for g in read), {}) if t is not None]
            shared += [len(results) + number for number in _find_shared(made, read)]
            results += [t.detach().clone() for t in made]
            results += [g.tensor.clone() for g, source in zip(read, unit.sources, strict=True) if source is None]
        if not all(each.is_whole() for each in guarded):
            raise Written("it writes outside a tensor")
        return _Ran([*results, *(g.tensor.clone() for g in given)], frozenset(shared))

    def _fault(self, drawn: Drawn, chosen: InputSet, portable: _Ran, runs: int) -> str | None:
        try:
            native = self._run(self._native, drawn, chosen)
        except Exception as cause:  # noqa: BLE001 - the portable form takes these inputs: any error is a fault
            return f"fails: {str(cause).splitlines()[0] if str(cause) else type(cause).__name__}"
        if more := native.shared - portable.shared:
            return f"output {min(more)}: it shares memory with an input"
        is_exact = chosen.kind == "whole" and self._whole
        moved = cache(lambda: self._moved(drawn, chosen, runs))
        kept = None if self._adds_nothing else _LARGE.get(chosen.kind)

        def compare(found: Results, moved: Callable[[], Sequence[Results]] = moved) -> str | None:
            expected = portable.results
            if kept is not None:
                found, expected = kept(found, expected)
            return find_fault(found, Portable(expected, moved), is_exact, signs=is_exact and self._signs)

        fault = compare(native.results)
        if fault is None or len(native.results) != len(portable.results):
            return fault
        settled = native.results
        for other in (Elsewhere(), Inside()):
            settled = settle_places(settled, portable.results, self._run(self._portable, drawn, chosen, other).results)
        fault = compare(settled)
        if fault is not None and not is_exact:
            in_double = self._run(self._portable, drawn, chosen, InDouble())
            settled = settle_overflows(settled, portable.results, in_double.results)
            fault = compare(settled)
        if fault is None or is_exact or runs < _MOVED_RUNS:
            return fault
        further = cache(lambda: [*moved(), *self._moved(drawn, chosen, _MORE_RUNS, runs)])
        return compare(settled, further)

    def _moved(self, drawn: Drawn, chosen: InputSet, count: int, first: int = 0) -> list[Results]:
        narrow = any(spec.dtype == "bfloat16" for kernel in self._unit.kernels for spec in kernel.inputs)
        is_narrow = narrow or any("bfloat16" in str(node) for kernel in self._unit.kernels for node in kernel.nodes)
        move = MOVES["bf16" if is_narrow else "f32"]
        runs: list[Results] = []
        for number in range(first, first + count):
            rounding = Rounding(move if number else move / 4, is_narrow and number % 2 == 1, _seeded(number))
            runs.append(self._run(self._portable, drawn, chosen, rounding).results)
        return runs


class Written(Exception):
    """A kernel wrote outside of its outputs."""


def _arriving(unit: Unit) -> list[TensorSpec]:
    """Return the inputs of a backward that its forward does not give."""
    if unit.backward is None:
        return []
    return [spec for spec, source in zip(unit.backward.inputs, unit.sources, strict=True) if source is None]


def _find_shared(made: Sequence[torch.Tensor], given: Sequence[GuardedTensor]) -> list[int]:
    """Return the numbers of created tensors that share memory with the given ones: a write changes both."""
    held = {g.memory.untyped_storage().data_ptr() for g in given}
    return [n for n, t in enumerate(made) if t.numel() and t.untyped_storage().data_ptr() in held]


def _seeded(number: int) -> torch.Generator:
    return torch.Generator().manual_seed(number)


def _place(specs: Sequence[TensorSpec], tensors: Sequence[torch.Tensor]) -> list[GuardedTensor]:
    return [guard(tensor, spec.stride) for spec, tensor in zip(specs, tensors, strict=True)]


def find_shapes(kernel: KernelGraph, inputs: Sequence[torch.Tensor]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a kernel's tensors, found by running it on ``inputs``."""
    names = tuple(node.name for node in kernel.nodes)
    run = build_portable(KernelGraph(kernel.inputs, kernel.nodes, names))
    made = run(tuple(inputs), {})
    found = {spec.name: spec.shape for spec in kernel.inputs}
    found.update((n, tuple(t.shape)) for n, t in zip(names, made, strict=True) if isinstance(t, torch.Tensor))
    return found


def find_all_roles(unit: Unit) -> Mapping[str, InputRole]:
    """Return the roles of the forward's inputs, including those that only the backward reveals."""
    specs = unit.forward.inputs
    zeros = [torch.zeros(spec.shape, dtype=getattr(torch, spec.dtype)) for spec in specs]
    try:
        shapes = find_shapes(unit.forward, zeros)
    except Exception:  # noqa: BLE001 - zeros are not legal for all operators: then inputs alone have shapes
        shapes = {spec.name: spec.shape for spec in specs}
    roles = find_roles(unit.forward, shapes)
    if unit.backward is not None:
        later = find_roles(unit.backward, {spec.name: spec.shape for spec in unit.backward.inputs})
        for spec, source in zip(unit.backward.inputs, unit.sources, strict=True):
            if source is not None and source[0] == "input" and spec.name in later:
                roles.setdefault(specs[source[1]].name, later[spec.name])
    return roles


def judge(
    unit: Unit, native: Side, is_full: bool = False, clock: Callable[[], float] = time.process_time
) -> KernelVerdict:  # fmt: skip
    """Compare a unit's native kernels with its portable ones.

    Args:
        is_full: all sets, unless one takes longer than ``FEW_S``.
        clock: seconds, by which the portable form is timed: of processor time, so that other processes do not matter.
    """
    with torch.no_grad():
        return _Judge(unit, native, clock).verdict(ALL_SETS, ALL_SETS if is_full else FEW_SETS)
