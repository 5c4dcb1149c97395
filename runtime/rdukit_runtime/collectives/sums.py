"""Reduction of several ranks' values: in rank order, in a wide type, rounded once.

Pure. The result of an element depends only on its values by rank, not on the other elements or on the adding rank.
Source: runtime reference 9 (f32 sums of FP32 and BF16); the order is ours.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from itertools import accumulate
from typing import Final

import torch

from rdukit.errors import InvalidArgument

#: Elements of a chunk whose operands stay in a core's cache.
CHUNK: Final = 1 << 16
#: Bytes of a part in a chunk that is added and then copied: both stay in a core's cache, and few calls do it.
_COPIED_BYTES: Final = 512 << 10
#: Most elements for which torch takes no second thread.
_MOST_ALONE: Final = (1 << 15) - 64
#: Slices begin at multiples of this many elements, so that no two ranks write to one cache line.
_LINE: Final = 64


def split(row: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return the chunks of a 1-D tensor that are added and then copied."""
    chunk = _COPIED_BYTES // row.element_size() if torch.get_num_threads() == 1 else _MOST_ALONE
    found: tuple[torch.Tensor, ...] = row.split(chunk)  # type: ignore[no-untyped-call]
    return found


class Reduction(StrEnum):
    """Reduction of the ranks' values to one."""

    SUM = "sum"
    MEAN = "mean"
    PRODUCT = "product"
    MIN = "min"
    MAX = "max"


_STEPS: Final[dict[Reduction, Callable[..., torch.Tensor]]] = {
    Reduction.SUM: torch.add,
    Reduction.MEAN: torch.add,
    Reduction.PRODUCT: torch.mul,
    Reduction.MIN: torch.minimum,
    Reduction.MAX: torch.maximum,
}


def wide_type(dtype: torch.dtype) -> torch.dtype:
    """Return the type in which values of ``dtype`` are added."""
    return torch.float32 if dtype in {torch.bfloat16, torch.float16} else dtype


def check_reduction(dtype: torch.dtype, reduction: Reduction) -> None:
    """Check that values of ``dtype`` can be reduced.

    Raises:
        InvalidArgument: the values are complex or boolean, or a mean of integers is requested.
    """
    if dtype.is_complex or dtype == torch.bool:
        raise InvalidArgument(f"{dtype} cannot be reduced; expected floating point or integer numbers")
    if reduction is Reduction.MEAN and not dtype.is_floating_point:
        raise InvalidArgument(f"the mean of {dtype} is not a {dtype}; reduce floating point numbers, or use a sum")


class Adder:
    """Reduces values by rank, with memory of its own for values that do not fit a narrow type."""

    def __init__(self) -> None:
        self._rooms: dict[torch.dtype, tuple[torch.Tensor, torch.Tensor]] = {}

    def combine(self, parts: Sequence[torch.Tensor], result: torch.Tensor, reduction: Reduction) -> None:
        """Reduce ``parts``, by rank, into ``result``. All are 1-D, of one length and type.

        ``result`` may be the first part, but must not share memory with the others.
        """
        if len(parts) == 2 and reduction is not Reduction.MEAN:  # torch, too, adds bf16 in f32 and rounds once
            _STEPS[reduction](parts[0], parts[1], out=result)
            return
        combine = self._combine if wide_type(result.dtype) == result.dtype else self._combine_wide
        for at in range(0, result.numel(), CHUNK):
            combine([part[at : at + CHUNK] for part in parts], result[at : at + CHUNK], reduction)

    @staticmethod
    def _combine(parts: Sequence[torch.Tensor], result: torch.Tensor, reduction: Reduction) -> None:
        step = _STEPS[reduction]
        if len(parts) == 1:
            result.copy_(parts[0])
            return
        step(parts[0], parts[1], out=result)
        for part in parts[2:]:
            step(result, part, out=result)
        if reduction is Reduction.MEAN:
            _divide(result, len(parts))

    def _combine_wide(self, parts: Sequence[torch.Tensor], result: torch.Tensor, reduction: Reduction) -> None:
        wide, step = wide_type(result.dtype), _STEPS[reduction]
        if wide not in self._rooms:
            self._rooms[wide] = (torch.empty(CHUNK, dtype=wide), torch.empty(CHUNK, dtype=wide))
        total, widened = (room[: result.numel()] for room in self._rooms[wide])
        total.copy_(parts[0])
        for part in parts[1:]:
            widened.copy_(part)
            step(total, widened, out=total)
        if reduction is Reduction.MEAN:
            _divide(total, len(parts))
        result.copy_(total)


def _divide(total: torch.Tensor, count: int) -> None:
    """Divide in place; a product with an inverse power of two has the same bits, and takes less time."""
    if count & (count - 1):
        total.div_(count)
    else:
        total.mul_(1.0 / count)


class RankMean:
    """Mean of tensors that arrive one after the other, rank 0's first, with the bits of ``Adder``."""

    def __init__(self) -> None:
        self._total: torch.Tensor | None = None
        self._count = 0

    def add(self, part: torch.Tensor) -> None:
        """Add the next rank's tensor, which must stay unchanged until the following one is added."""
        self._count += 1
        if self._total is None:
            self._total, self._dtype = part, part.dtype
        elif self._count == 2:
            self._total = torch.add(self._total.to(wide_type(part.dtype)), part)
        else:
            self._total.add_(part)

    def result(self) -> torch.Tensor:
        """Return the mean of at least one tensor, in their type."""
        assert self._total is not None, "there is a rank"
        return self._total.div(self._count).to(self._dtype) if self._count > 1 else self._total


def slice_of(count: int, rank: int, size: int) -> tuple[int, int]:
    """Return the begin and end of the elements, out of ``count``, that ``rank`` reduces."""
    each = -(-count // (size * _LINE)) * _LINE
    return min(rank * each, count), min((rank + 1) * each, count)


class Flat:
    """Contiguous tensors of one type as one row of elements."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._rows = [tensor.view(-1) for tensor in tensors]
        #: Position of each tensor's first element, and of the end.
        self._starts = list(accumulate((row.numel() for row in self._rows), initial=0))

    @property
    def count(self) -> int:
        """Elements of all."""
        return self._starts[-1]

    def pieces(self, first: int, last: int) -> Iterator[tuple[int, torch.Tensor]]:
        """Return the elements from ``first`` to before ``last`` as 1-D views, with positions."""
        for number in range(max(bisect_right(self._starts, first) - 1, 0), len(self._rows)):
            row, start = self._rows[number], self._starts[number]
            if start >= last:
                return
            low, high = max(first, start), min(last, start + row.numel())
            if low < high:
                yield low, row[low - start : high - start]

    def read(self, first: int, last: int, memory: torch.Tensor) -> torch.Tensor:
        """Copy elements into the beginning of ``memory``; returns the part that they fill."""
        for at, row in self.pieces(first, last):
            memory[at - first : at - first + row.numel()].copy_(row)
        return memory[: last - first]

    def write(self, first: int, last: int, memory: torch.Tensor) -> None:
        """Overwrite elements by the beginning of ``memory``."""
        for at, row in self.pieces(first, last):
            row.copy_(memory[at - first : at - first + row.numel()])

    def lend(self, first: int, last: int, memory: torch.Tensor) -> torch.Tensor:
        """Return elements in place if they lie in one tensor; otherwise a copy in ``memory``."""
        found = list(self.pieces(first, last))
        return found[0][1] if len(found) == 1 else self.read(first, last, memory)
