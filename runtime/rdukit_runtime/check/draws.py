"""Draws the inputs on which kernels are compared: whole numbers, random ones, and special ones.

A drawn tensor lies in memory of its own, with the strides that the plan says and guards on both sides.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import torch

from rdukit.pef.kernel import TensorSpec
from rdukit_runtime.check.roles import InputRole

#: Bytes before and after a tensor that no kernel may write, and their value.
GUARD_BYTES: Final = 64
_GUARD: Final = 0xA5
#: At most one of this many places holds a special number.
_SPARSE: Final = 16
#: Smallest number of whole numbers that include both zeros.
_ZEROS_AMONG: Final = 4
#: Factor from random numbers to small ones.
_NEAR_ZERO: Final = 1e-4
#: Mean of numbers of one sign: so large that a variance as a difference of squares loses its digits.
_FAR: Final = 30.0
#: Powers of ten between which numbers of all sizes lie.
_SIZES: Final = (-7.0, 7.0)


@dataclass(frozen=True, slots=True)
class InputSet:
    """Way to draw inputs.

    ``kind``: ``whole`` (small whole numbers and powers of two, with ties), ``random``, ``small`` (random, near zero),
    ``above`` (around 30, whole ones large), ``below`` (around -30), ``wide`` (of all sizes), ``least`` (negative
    infinity alone), or special numbers, which are mixed into random ones. ``gradient``: incoming gradients of a
    backward: ``whole``, ``ones``, ``random`` or ``one-hot``. ``masks``: share of a mask's true places.
    ``is_narrow``: whole inputs are zeros and ones, because indices may be computed from them.
    """

    kind: str
    seed: int
    gradient: str = "random"
    masks: str = "some"
    is_narrow: bool = False

    def __str__(self) -> str:
        return f"{self.kind} numbers, gradient {self.gradient}, masks {self.masks}, seed {self.seed}"


#: Special numbers by name. A number that a narrower dtype cannot hold becomes infinite or zero in it.
SPECIALS: Final[Mapping[str, Sequence[float]]] = {
    "nan": (float("nan"),),
    "infinite": (float("inf"), float("-inf")),
    "denormal": (1e-40, -1e-40, 0.0, -0.0),
    "extreme": (3e38, -3e38, 1e20, -1e20, 1e-20),
    "uneven": (1e7, -1e7, 65504.0, 0.1, -1e-3, 1e-7),
}  # fmt: skip

#: All sets, and the sets for a section that takes long.
ALL_SETS: Final = (
    InputSet("whole", 1, "whole", "some"), InputSet("whole", 2, "ones", "one"), InputSet("random", 3, "random", "some"),
    InputSet("random", 4, "one-hot", "none"), InputSet("random", 5, "ones", "all"), InputSet("small", 6),
    *(InputSet(kind, 7 + number) for number, kind in enumerate(SPECIALS)),
    InputSet("above", 20), InputSet("below", 21), InputSet("wide", 22), InputSet("least", 23),
)  # fmt: skip
FEW_SETS: Final = (ALL_SETS[0], ALL_SETS[2])


@dataclass(frozen=True, slots=True)
class GuardedTensor:
    """A tensor between two guards."""

    tensor: torch.Tensor
    memory: torch.Tensor

    def is_whole(self) -> bool:
        """Return whether the guards are unchanged."""
        return bool((self.memory[:GUARD_BYTES] == _GUARD).all() and (self.memory[-GUARD_BYTES:] == _GUARD).all())


def guard(tensor: torch.Tensor, stride: Sequence[int] | None = None) -> GuardedTensor:
    """Copy a tensor to guarded memory of its own, with ``stride`` or its own."""
    steps = tuple(tensor.stride() if stride is None else stride)
    reach = 1 + sum((size - 1) * step for size, step in zip(tensor.shape, steps, strict=True))
    size = (reach if tensor.numel() else 0) * tensor.element_size()
    memory = torch.full((GUARD_BYTES + size + GUARD_BYTES,), _GUARD, dtype=torch.uint8)
    held = memory[GUARD_BYTES : GUARD_BYTES + size].view(tensor.dtype)
    placed = held.as_strided(tensor.shape, steps)
    if tensor.numel():
        placed.copy_(tensor)
    return GuardedTensor(placed, memory)


def draw(spec: TensorSpec, role: InputRole | None, chosen: InputSet, number: int) -> torch.Tensor:
    """Draw one input of a forward, contiguous.

    Args:
        number: its position, part of the seed.
    """
    generator = torch.Generator().manual_seed(1000 * chosen.seed + number)
    dtype = getattr(torch, spec.dtype)
    if dtype == torch.bool:
        return _mask(spec.shape, chosen.masks, generator)
    if role is not None and role.kind == "index":
        return _indices(spec.shape, role, generator).to(dtype)
    if role is not None and role.kind == "sorted":
        return torch.rand(spec.shape, generator=generator).sort(-1).values.mul(4).sub(2).to(dtype)
    if not (dtype.is_floating_point or dtype.is_complex):
        least = 0 if dtype == torch.uint8 or chosen.is_narrow else -3
        made = torch.randint(least, 2 if chosen.is_narrow else 4, spec.shape, generator=generator)
        if chosen.kind == "above" and not chosen.is_narrow:
            _strew(made, _large_numbers(dtype), generator)
        return (made.masked_fill(made == 0, 4) if role is not None and role.kind == "divisor" else made).to(dtype)
    if dtype.is_complex:
        return torch.view_as_complex(_numbers((*spec.shape, 2), None, chosen, generator)).to(dtype)
    return _numbers(spec.shape, role, chosen, generator).to(dtype)


def draw_gradient(spec: TensorSpec, chosen: InputSet, number: int) -> torch.Tensor:
    """Draw a gradient that arrives at a backward, or a sum so far, contiguous."""
    dtype, generator = getattr(torch, spec.dtype), torch.Generator().manual_seed(1000 * chosen.seed + 500 + number)
    if not dtype.is_floating_point:  # they may be places, whose reader is not always known
        return draw(spec, None, replace(chosen, kind="random"), number)
    if chosen.gradient == "ones":
        return torch.ones(spec.shape, dtype=dtype)
    if chosen.gradient == "one-hot":
        made = torch.zeros(spec.shape, dtype=dtype)
        if made.numel():
            made.view(-1)[int(torch.randint(made.numel(), (), generator=generator))] = 1
        return made
    if chosen.gradient == "whole":
        return torch.randint(-3, 4, spec.shape, generator=generator).to(dtype)
    return torch.randn(spec.shape, generator=generator).to(dtype)


def _numbers(
    shape: Sequence[int], role: InputRole | None, chosen: InputSet, generator: torch.Generator
) -> torch.Tensor:
    kind = None if role is None else role.kind
    if chosen.kind == "whole":
        made = torch.randint(-3, 4, tuple(shape), generator=generator).float()
        powers = torch.tensor([0.5, 1.0, 2.0])[torch.randint(3, tuple(shape), generator=generator)]
        made = made * powers
        if made.numel() >= _ZEROS_AMONG:
            places = torch.randperm(made.numel(), generator=generator)[:2]
            made.view(-1)[places] = torch.tensor([0.0, -0.0])
        if kind == "positive":
            return made.abs() + 1
        return (made > 0).float() if kind == "probability" else made
    if kind == "probability":
        made = torch.rand(tuple(shape), generator=generator)
    elif kind == "positive":
        made = torch.rand(tuple(shape), generator=generator) + 0.5
    else:
        made = _plain(shape, chosen.kind, generator)
    if chosen.kind in SPECIALS and made.numel() and kind != "probability":
        numbers = torch.tensor(SPECIALS[chosen.kind], dtype=torch.float64)
        if kind == "positive":
            numbers = numbers.abs()
        _strew(made, numbers.float(), generator)
    return made


def _plain(shape: Sequence[int], kind: str, generator: torch.Generator) -> torch.Tensor:
    """Draw numbers that may be any."""
    made = torch.randn(tuple(shape), generator=generator)
    if kind == "small":
        return made * _NEAR_ZERO
    if kind in {"above", "below"}:
        return made + (_FAR if kind == "above" else -_FAR)
    if kind == "wide":
        powers = torch.rand(tuple(shape), generator=generator) * (_SIZES[1] - _SIZES[0]) + _SIZES[0]
        return made.sign() * 10**powers
    return torch.full_like(made, float("-inf")) if kind == "least" else made


def _strew(made: torch.Tensor, numbers: torch.Tensor, generator: torch.Generator) -> None:
    """Overwrite a few elements with some of ``numbers``."""
    if made.numel():
        count = max(1, made.numel() // _SPARSE)
        places = torch.randperm(made.numel(), generator=generator)[:count]
        made.view(-1)[places] = numbers[torch.randint(len(numbers), (count,), generator=generator)]


def _large_numbers(dtype: torch.dtype) -> torch.Tensor:
    """Return whole numbers whose sums need more than half of the dtype's range, except the smallest number, whose
    negative does not fit.
    """
    most = torch.iinfo(dtype).max
    return torch.tensor([most, most // 2 + 1, *([] if dtype == torch.uint8 else [-most])])


def _indices(shape: Sequence[int], role: InputRole, generator: torch.Generator) -> torch.Tensor:
    """Draw indices in range; the first, the last, a repeated and a negative one if there is room."""
    made = torch.randint(0, max(1, role.limit), tuple(shape), generator=generator)
    legal = [0, role.limit - 1, role.limit - 1]
    if role.least < 0:
        legal.append(-1)
    if role.ignored is not None:
        legal.append(role.ignored)
    flat = made.reshape(-1)
    if flat.numel() > 2 * len(legal):
        places = torch.randperm(flat.numel(), generator=generator)[: len(legal)]
        flat[places] = torch.tensor(legal)
    return flat.reshape(tuple(shape))


def _mask(shape: Sequence[int], share: str, generator: torch.Generator) -> torch.Tensor:
    if share in {"all", "none"}:
        return torch.full(tuple(shape), share == "all")
    if share == "one":
        made = torch.zeros(tuple(shape), dtype=torch.bool)
        if made.numel():
            made.view(-1)[int(torch.randint(made.numel(), (), generator=generator))] = True
        return made
    return torch.rand(tuple(shape), generator=generator) < 0.5
