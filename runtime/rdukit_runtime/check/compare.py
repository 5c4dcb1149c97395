"""Whether native results agree with portable ones, as far as rounding leaves them certain."""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Final

import torch

from rdukit_runtime.check.rounding import AGREES

#: Permitted deviation of a native result, as a multiple of the largest deviation of perturbed portable results.
FACTOR: Final = 5.0
#: The largest part of a result's elements that rounding may decide altogether, such as the places of a maximum.
UNCERTAIN: Final = 0.01
#: From which part of the largest magnitude on a moved element counts as decided by rounding.
_FLIPS: Final = 1e-3
#: Distance from double precision's result, over the portable result's distance, below which overflow explains a fault.
_NEARER: Final = 0.1

Results = Sequence[torch.Tensor]


class Portable:
    """Results of the portable form, and of its perturbed runs, which are computed on demand.

    Args:
        run_moved: returns several runs' results.
    """

    def __init__(self, results: Results, run_moved: Callable[[], Sequence[Results]]) -> None:
        self.results = results
        self._run_moved = run_moved

    @cached_property
    def moved(self) -> Sequence[Results]:
        """The moved runs' results."""
        return self._run_moved()


def find_fault(native: Results, portable: Portable, is_exact: bool, signs: bool = False) -> str | None:
    """Return the fault of native results, or None.

    Args:
        is_exact: every operator is exact on these inputs, so the order of additions does not matter.
        signs: the signs of zeros are also compared.
    """
    if len(native) != len(portable.results):
        return f"{len(native)} results, not {len(portable.results)}"
    for number, (ours, theirs) in enumerate(zip(native, portable.results, strict=True)):
        fault = _find_one(number, ours, theirs, portable, is_exact, signs)
        if fault is not None:
            return f"output {number}: {fault}"
    return None


def finite_in_both(ours: Results, theirs: Results) -> tuple[Results, Results]:
    """Return results with zeros where either overflows: which sums do depends on the order of additions."""
    return _kept(ours, theirs, lambda a, b: a.isfinite() & b.isfinite())


def finite_in_portable(ours: Results, theirs: Results) -> tuple[Results, Results]:
    """Return results with zeros where ``theirs`` overflows."""
    return _kept(ours, theirs, lambda _, b: b.isfinite())


def _kept(
    ours: Results, theirs: Results, keep: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
) -> tuple[Results, Results]:
    pairs = [
        (a, b) if a.shape != b.shape or not a.is_floating_point()
        else tuple(torch.where(keep(a, b), t, torch.zeros_like(t)) for t in (a, b))
        for a, b in zip(ours, theirs, strict=False)
    ]  # fmt: skip
    return [a for a, _ in pairs], [b for _, b in pairs]


def settle_places(ours: Results, theirs: Results, elsewhere: Results, precision: str = "f32") -> Results:
    """Return ``ours`` with ``theirs`` where ours is what torch computes in other places, if one is infinite or NaN.

    Args:
        precision: of the computation; wide results may be computed from bf16.
    """
    return [_settle_one(a, b, c, precision) for a, b, c in zip(ours, theirs, elsewhere, strict=True)]


def settle_overflows(ours: Results, theirs: Results, in_double: Results) -> Results:
    """Return ``ours`` with ``theirs`` where ours is much nearer to the result of double precision than theirs."""
    return [_settle_overflow(a, b, c) for a, b, c in zip(ours, theirs, in_double, strict=True)]


def _settle_overflow(ours: torch.Tensor, theirs: torch.Tensor, in_double: torch.Tensor) -> torch.Tensor:
    if not ours.is_floating_point() or ours.dtype != theirs.dtype or ours.shape != theirs.shape:
        return ours
    settled, places = ours.clone(), _off(ours, in_double) < _NEARER * _off(theirs, in_double)
    settled[places] = theirs[places]
    return settled


def _settle_one(
    ours: torch.Tensor, theirs: torch.Tensor, elsewhere: torch.Tensor, precision: str
) -> torch.Tensor:  # fmt: skip
    if not ours.is_floating_point() or ours.dtype != theirs.dtype or ours.shape != theirs.shape:
        return ours
    is_wide = ours.dtype in {torch.float32, torch.float64} and precision == "f32"
    near = AGREES["f32" if is_wide else "bf16"] * _largest(elsewhere)
    places = ~(elsewhere.isfinite() & theirs.isfinite()) & (_off(ours, elsewhere) <= near)
    settled = ours.clone()  # with the strides of ours, which are compared as well
    settled[places] = theirs[places]
    return settled


def _find_one(
    number: int, ours: torch.Tensor, theirs: torch.Tensor, portable: Portable, is_exact: bool, signs: bool
) -> str | None:  # fmt: skip
    if ours.dtype != theirs.dtype or ours.shape != theirs.shape:
        return f"{ours.dtype} {tuple(ours.shape)}, not {theirs.dtype} {tuple(theirs.shape)}"
    if theirs.is_contiguous() and not ours.is_contiguous():  # its readers use its portable layout
        return f"strides {ours.stride()}, not {theirs.stride()}"
    if ours.is_complex():
        ours, theirs = torch.view_as_real(ours.resolve_conj()), torch.view_as_real(theirs.resolve_conj())
    same = _are_same(ours, theirs)
    if bool(same.all()) and not (signs and bool(((ours == 0) & (ours.signbit() != theirs.signbit())).any())):
        return None
    if is_exact:
        return _describe(ours, theirs, ~same if not bool(same.all()) else ours.signbit() != theirs.signbit())
    if ours.is_floating_point():
        size = _largest(theirs)
        off = _off(ours, theirs)
        least = AGREES["bf16" if ours.dtype in {torch.bfloat16, torch.float16} else "f32"] * size
        if bool((off <= least).all()):
            return None
        spread, is_certain = _spread(number, theirs, portable, size)
        wrong = is_certain & ~(off <= max(least, FACTOR * spread))
    else:
        _, is_certain = _spread(number, theirs, portable, 0.0)
        wrong = is_certain & ~same
    if not bool(wrong.any()) or float((~is_certain).float().mean()) > UNCERTAIN:
        return None
    return _describe(ours, theirs, wrong)


def _are_same(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (a == b) | (a.isnan() & b.isnan()) if a.is_floating_point() else a == b


def _off(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return the distances of elements; infinite where one of two different elements is not finite."""
    wide_a, wide_b = a.double(), b.double()
    off = (wide_a - wide_b).abs()
    off[_are_same(a, b)] = 0.0
    return torch.where(off.isnan(), float("inf"), off)


def _largest(value: torch.Tensor) -> float:
    finite = value[value.isfinite()]
    return float(finite.double().abs().max()) if finite.numel() else 0.0


def _spread(number: int, theirs: torch.Tensor, portable: Portable, size: float) -> tuple[float, torch.Tensor]:
    """Return the movement of a result by rounding, and the elements that rounding does not determine completely."""
    is_certain, spread = torch.ones_like(theirs, dtype=torch.bool), 0.0
    offs = []
    for run in portable.moved:
        moved = run[number]
        if moved.is_complex():
            moved = torch.view_as_real(moved.resolve_conj())
        if not theirs.is_floating_point():
            is_certain &= moved == theirs
            continue
        off = _off(moved, theirs)
        is_certain &= off <= _FLIPS * size
        offs.append(off)
    if offs and not bool(is_certain.all()) and float((~is_certain).float().mean()) > UNCERTAIN:
        is_certain = torch.stack(offs).isfinite().all(0)  # all of it is moved that far: no single places
    for off in offs:
        held = off[is_certain]
        spread = max(spread, float(held.max()) if held.numel() else 0.0)
    return spread, is_certain


def _describe(ours: torch.Tensor, theirs: torch.Tensor, wrong: torch.Tensor) -> str:
    places = wrong.nonzero()
    off = _off(ours, theirs)
    worst = int(torch.where(wrong, off, -1.0).argmax()) if ours.numel() else 0
    place = tuple(int(i) for i in torch.unravel_index(torch.tensor(worst), ours.shape)) if ours.dim() else ()
    return (
        f"{len(places)} of {ours.numel()} elements differ, most at {list(place)}: "
        f"{ours.reshape(-1)[worst].item()}, portable {theirs.reshape(-1)[worst].item()}"
    )
