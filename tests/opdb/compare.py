"""Limits on how far the device's numbers may be from eager torch's."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import torch

#: bf16 has 8 bits: of a result's largest value, what a few roundings of 2^-9 leave.
BF16_ERROR: Final = 2.0**-6
#: Relative and absolute tolerance of gradients in f32: sums in another order.
GRADIENT_ERROR: Final = 1e-5


class State(StrEnum):
    """Result of a case. ``SKIPPED``: torch itself does not compute it."""

    RIGHT = "right"
    REFUSED = "refused"
    WRONG = "wrong"
    BARE = "bare"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Verdict:
    """``code`` is that of the error where there is one, ``text`` its message or what differs.

    ``natives``: operators that native kernels computed.
    """

    state: State
    code: str = ""
    text: str = ""
    natives: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Results:
    """Outputs, and gradients of the parameters; None where there is none."""

    outputs: list[torch.Tensor]
    gradients: list[torch.Tensor | None]


def compare(made: Results, truth: Results) -> Verdict:
    """Compare in f32: shapes, dtypes and values as ``torch.testing.assert_close`` has them, gradients at 1e-5."""
    if (wrong := compare_forms(made, truth)).state is not State.RIGHT:
        return wrong
    for position, (ours, theirs) in enumerate(zip(made.outputs, truth.outputs, strict=True)):
        if text := _difference(ours, theirs.detach()):
            return Verdict(State.WRONG, text=f"output {position}: {text}")
    for position, (our, their) in enumerate(zip(made.gradients, truth.gradients, strict=True)):
        if text := _gradient_difference(our, their):
            return Verdict(State.WRONG, text=f"gradient {position}: {text}")
    return Verdict(State.RIGHT)


def is_as_near(made: Results, truth: Results, exact: Results) -> bool:
    """Return whether each f32 number equals torch's, or is no further from ``exact``, torch's f64, than torch's is."""
    if compare_forms(made, truth).state is not State.RIGHT:
        return False
    pairs = zip([*made.outputs, *made.gradients], [*truth.outputs, *truth.gradients], strict=True)
    for (ours, theirs), best in zip(pairs, [*exact.outputs, *exact.gradients], strict=True):
        if ours is None or theirs is None or best is None:
            if _gradient_difference(ours, theirs):
                return False
            continue
        if not theirs.dtype.is_floating_point:
            if not torch.equal(ours, theirs):
                return False
            continue
        found, near, truest = (each.detach().double() for each in (ours, theirs, best))
        is_equal = torch.isclose(found, near, GRADIENT_ERROR, GRADIENT_ERROR, equal_nan=True)
        if not bool((is_equal | ((found - truest).abs() <= (near - truest).abs())).all()):
            return False
    return True


def _gradient_difference(ours: torch.Tensor | None, theirs: torch.Tensor | None) -> str:
    """Compare gradients: torch's None, of an argument that no gradient reaches, and zeros say the same."""
    if ours is None or theirs is None:
        there = theirs if ours is None else ours
        return "" if there is None or not bool(there.any()) else "is missing" if ours is None else "torch has none"
    if ours.dtype == theirs.dtype == torch.float32:
        return _difference(ours, theirs, GRADIENT_ERROR, GRADIENT_ERROR)
    return _difference(ours, theirs)


def _difference(
    ours: torch.Tensor, theirs: torch.Tensor, relative: float | None = None, absolute: float | None = None
) -> str:
    try:
        torch.testing.assert_close(ours, theirs, equal_nan=True, rtol=relative, atol=absolute)
    except AssertionError as cause:
        return "; ".join(str(cause).splitlines())[:300]
    return ""


def compare_forms(made: Results, truth: Results) -> Verdict:
    ours = [(tuple(t.shape), t.dtype) for t in made.outputs]
    theirs = [(tuple(t.shape), t.dtype) for t in truth.outputs]
    if ours != theirs:
        return Verdict(State.WRONG, text=f"outputs are {ours}, torch's {theirs}"[:300])
    return Verdict(State.RIGHT)


def compare_rounded(made: Results, truth: Results, rounded: Results | None) -> Verdict:
    """Compare in bf16: within 2^-6 of the largest value of f32's truth, or as near as torch's own bf16, or equal
    to it. ``rounded``: torch's bf16; None where torch has none.
    """
    if (wrong := compare_forms(made, truth)).state is not State.RIGHT:
        return wrong
    pairs = [("output", i, a, b.detach()) for i, (a, b) in enumerate(zip(made.outputs, truth.outputs, strict=True))]
    others: list[torch.Tensor | None] = list(rounded.outputs) if rounded else [None] * len(pairs)
    for position, (ours, theirs) in enumerate(zip(made.gradients, truth.gradients, strict=True)):
        if ours is None or theirs is None:
            if text := _gradient_difference(ours, theirs):
                return Verdict(State.WRONG, text=f"gradient {position}: {text}")
            continue
        pairs.append(("gradient", position, ours, theirs))
        others.append(rounded.gradients[position] if rounded else None)
    for (what, position, ours, theirs), other in zip(pairs, others, strict=True):
        if text := _rounded_difference(ours, theirs, other):
            return Verdict(State.WRONG, text=f"{what} {position}: {text}")
    return Verdict(State.RIGHT)


def _rounded_difference(ours: torch.Tensor, theirs: torch.Tensor, other: torch.Tensor | None) -> str:
    found, exact = _as_real(ours), _as_real(theirs)
    finite = torch.isfinite(exact)
    if torch.equal(torch.isfinite(found), finite):
        off, size = (found - exact)[finite].abs(), exact[finite].abs()
        is_near = not off.numel() or float(off.max()) <= BF16_ERROR * max(float(size.max()), 1e-3)
        if is_near and torch.equal(found[~finite].nan_to_num(7), exact[~finite].nan_to_num(7)):
            return ""
    if other is not None and other.shape == ours.shape:
        near = _as_real(other)
        error, size = _finite(near - exact), _finite(exact)
        is_as_near = _finite(found - exact) <= 2 * error + BF16_ERROR * size
        if bool((is_as_near | (found == near) | (found.isnan() & near.isnan())).all()):
            return ""
    return _difference(found, exact, BF16_ERROR, 0.0)


def _as_real(tensor: torch.Tensor) -> torch.Tensor:
    plain = tensor.detach().resolve_conj()
    return (torch.view_as_real(plain) if plain.is_complex() else plain).to(torch.float64)


def _finite(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.abs().nan_to_num(0, 0, 0)
