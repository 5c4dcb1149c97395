"""Memory with a part for each rank, mapped by all ranks of a machine: its views are reduced in place.

Each rank adds its own slice of all parts and writes the result into all of them. Each element is read once from each
part and written once to each; there are no other copies. Source: ours.
"""

import weakref
from collections.abc import Callable, Sequence
from typing import Final

import torch

from rdukit_runtime.collectives.region import share_memory
from rdukit_runtime.collectives.sums import Adder, Reduction, slice_of, split

#: Parts begin at multiples of this many bytes: a page, so that each rank's part can lie in its own core's memory.
_PART: Final = 4096


class PlacedMemory:
    """Memory with a part for each rank; it lives as long as tensors in it do.

    Args:
        memory: a complete mapping, with at least ``part_bytes`` for each of ``size`` ranks.
        number: number of this memory, the same on every rank.
    """

    def __init__(self, memory: memoryview, part_bytes: int, rank: int, size: int, number: int) -> None:
        self._mapping = weakref.ref(memory.obj)
        self._part_bytes, self._rank, self._size, self._number = part_bytes, rank, size, number
        self._begin = torch.frombuffer(memory, dtype=torch.uint8).data_ptr() + rank * part_bytes

    @property
    def is_used(self) -> bool:
        """True while there are tensors in it."""
        return self._mapping() is not None

    def find_offset(self, tensor: torch.Tensor) -> int | None:
        """Return the byte offset of a contiguous tensor in this rank's part; None: it lies elsewhere."""
        offset = tensor.data_ptr() - self._begin
        return offset if self.is_used and offset >= 0 and offset + tensor.nbytes <= self._part_bytes else None

    def describe(self, offset: int) -> str:
        """Return the place of ``offset`` in the form that the ranks compare."""
        return f"at byte {offset} of shared memory {self._number}"

    def views(self, offset: int, dtype: torch.dtype, count: int) -> list[torch.Tensor]:
        """Return the memory at ``offset`` of each rank's part, by rank, as 1-D tensors of ``count`` > 0 elements."""
        mapping = self._mapping()
        assert mapping is not None, "a tensor in it is being reduced"
        starts = (of * self._part_bytes + offset for of in range(self._size))
        return [torch.frombuffer(mapping, dtype=dtype, count=count, offset=start) for start in starts]


def allocate(
    count_bytes: int, number: int, rank: int, size: int, exchange: Callable[[str], list[str]]
) -> tuple[torch.Tensor, PlacedMemory | None]:
    """Return this rank's zeroed bytes in a new memory, and that; a collective.

    Without room on the machine, the bytes are this rank's own.
    """
    part_bytes = -(-max(count_bytes, 1) // _PART) * _PART
    shared = share_memory(rank, size * part_bytes, exchange)
    if shared is None:
        return torch.zeros(count_bytes, dtype=torch.uint8), None
    memory = PlacedMemory(shared[0], part_bytes, rank, size, number)
    return torch.frombuffer(shared[0], dtype=torch.uint8, count=count_bytes, offset=rank * part_bytes), memory


def reduce_slice(parts: Sequence[torch.Tensor], rank: int, adder: Adder, reduction: Reduction) -> None:
    """Reduce the slice of ``rank`` of equal 1-D parts, by rank, and write the result into all of them."""
    low, high = slice_of(parts[0].numel(), rank, len(parts))
    if low == high:
        return
    for first, *others in zip(*(split(part[low:high]) for part in parts), strict=True):
        adder.combine([first, *others], first, reduction)
        for other in others:
            other.copy_(first)
