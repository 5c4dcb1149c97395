"""Collectives of the ranks of one machine, through memory that they share.

Large data passes through the slots in pieces: each rank writes its contribution, reduces its own slice of all
contributions, and reads the other slices' results. An element of a program's own tensor is copied in and out once, and
a rank's own slice is neither. Small data needs one meeting less: every rank reduces all of it. Memory of ``allocate``
is reduced in place, see ``placed``. Source: ours.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import torch

from rdukit.errors import InvalidArgument, PeerLost
from rdukit_runtime.collectives.group import Collectives
from rdukit_runtime.collectives.placed import PlacedMemory, allocate, reduce_slice
from rdukit_runtime.collectives.ports import RankPorts
from rdukit_runtime.collectives.region import RankRegion
from rdukit_runtime.collectives.sums import Adder, Flat, Reduction, slice_of

#: Up to this size each rank reduces everything itself.
_SMALL_BYTES: Final = 32 << 10


class SharedMemory(Collectives):
    """The data plane in a machine's memory."""

    def __init__(self, region: RankRegion, ports: RankPorts | None = None) -> None:
        super().__init__(region.rank, region.size, region.ranks)
        self._ports = ports
        self._region = region
        self.stragglers = region.stragglers
        self._adder = Adder()
        #: Memory of ``allocate``, and the number of its calls.
        self._memories: list[PlacedMemory] = []
        self._allocated = 0
        #: Why the group can do nothing more; empty: it can.
        self._broken = ""

    def allocate(self, count_bytes: int) -> torch.Tensor:
        """Return zeroed bytes whose views are reduced in place."""
        self._memories = [memory for memory in self._memories if memory.is_used]
        self._allocated += 1
        mine, memory = allocate(count_bytes, self._allocated, self.rank, self.size, self.exchange)
        if memory is not None:
            self._memories.append(memory)
        return mine

    def note(self, doing: str) -> None:
        """Record this rank's activity between collectives, for errors of the others."""
        self._region.note(doing)
        if self._ports is not None:
            self._ports.note(doing)

    def barrier(self) -> None:
        """Wait until every rank is here."""
        with self._collective("barrier"):
            self._meet(is_first=True)

    def close(self) -> None:
        """Leave the group; ranks that wait for this one end with an error."""
        if not self._broken:
            self._broken = "this rank has left the group"
            self._region.leave()
            if self._ports is not None:
                self._ports.leave()

    def _all_reduce(
        self, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], reduction: Reduction, text: str
    ) -> None:
        read, written, dtype = Flat(inputs), Flat(outputs), inputs[0].dtype
        placed = self._find_placed(inputs, outputs)
        if placed is not None:
            memory, offset = placed
            with self._collective(f"{text} {memory.describe(offset)}"):
                self._meet(is_first=True)
                reduce_slice(memory.views(offset, dtype, read.count), self.rank, self._adder, reduction)
                self._meet()
            return
        longest = self._region.slot_bytes // dtype.itemsize
        with self._collective(text):
            if read.count * dtype.itemsize <= _SMALL_BYTES:
                self._reduce_everywhere(read, written, dtype, reduction)
            else:
                for first in range(0, read.count, longest):
                    self._reduce_piece(read, written, first, min(first + longest, read.count), dtype, reduction)

    def _find_placed(
        self, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]
    ) -> tuple[PlacedMemory, int] | None:  # fmt: skip
        """Return the place of the only tensor; None: there are several, it is short, or it is not in shared memory."""
        if len(inputs) > 1 or inputs[0].nbytes <= _SMALL_BYTES or inputs[0].data_ptr() != outputs[0].data_ptr():
            return None
        found = ((memory, memory.find_offset(inputs[0])) for memory in self._memories)
        return next(((memory, offset) for memory, offset in found if offset is not None), None)

    def _reduce_everywhere(self, read: Flat, written: Flat, dtype: torch.dtype, reduction: Reduction) -> None:
        slots = self._region.slots(dtype)
        read.read(0, read.count, slots[self.rank])
        self._meet(is_first=True)
        made = torch.empty(read.count, dtype=dtype)
        self._adder.combine([slot[: read.count] for slot in slots], made, reduction)
        written.write(0, written.count, made)

    def _reduce_piece(
        self, read: Flat, written: Flat, first: int, last: int, dtype: torch.dtype, reduction: Reduction
    ) -> None:
        slots = self._region.slots(dtype)
        mine = slots[self.rank]
        low, high = slice_of(last - first, self.rank, self.size)
        read.read(first, first + low, mine)
        read.read(first + high, last, mine[high:])
        own = read.lend(first + low, first + high, mine[low:])
        self._meet(is_first=first == 0)
        results = self._region.slots(dtype)[0]
        parts = [own if slot is mine else slot[low:high] for slot in slots]
        self._adder.combine(parts, results[low:high], reduction)
        self._meet()
        written.write(first, last, results)

    def _reduce_scatter(self, given: torch.Tensor, output: torch.Tensor, reduction: Reduction, text: str) -> None:
        parts, made = given.view(self.size, -1), output.view(-1)
        longest = self._region.slot_bytes // given.element_size() // self.size
        with self._collective(text):
            for first in self._pieces(made.numel(), longest):
                last = min(first + longest, made.numel())
                slots = [slot[: self.size * longest].view(self.size, -1) for slot in self._region.slots(given.dtype)]
                slots[self.rank][:, : last - first].copy_(parts[:, first:last])  # the output may be a part of it
                self._meet(is_first=first == 0)
                read = [slot[self.rank, : last - first] for slot in slots]
                self._adder.combine(read, made[first:last], reduction)

    def _all_gather(self, given: torch.Tensor, output: torch.Tensor, text: str) -> None:
        read, made = given.view(-1), output.view(self.size, -1)
        longest = self._region.slot_bytes // given.element_size()
        with self._collective(text):
            for first in self._pieces(read.numel(), longest):
                last = min(first + longest, read.numel())
                slots = self._region.slots(given.dtype)
                slots[self.rank][: last - first].copy_(read[first:last])
                self._meet(is_first=first == 0)
                for rank in range(self.size):
                    made[rank, first:last].copy_(slots[rank][: last - first])

    def _broadcast(self, rows: Sequence[torch.Tensor], root: int, text: str) -> None:
        flat, longest = Flat(rows), self._region.slot_bytes
        with self._collective(text):
            for first in self._pieces(flat.count, longest):
                last = min(first + longest, flat.count)
                slot = self._region.slots(torch.uint8)[root]
                if self.rank == root:
                    flat.read(first, last, slot)
                self._meet(is_first=first == 0)
                if self.rank != root:
                    flat.write(first, last, slot)

    def _send(self, tensor: torch.Tensor, to: int, text: str) -> None:
        with self._collective(f"send to rank {self.ranks.numbers[to]} {text}", is_pair=True):
            for row in self._rows(tensor):
                self._region.send_piece(to, text, row)

    def _recv(self, tensor: torch.Tensor, sender: int, text: str) -> None:
        with self._collective(f"receive from rank {self.ranks.numbers[sender]} {text}", is_pair=True):
            for row in self._rows(tensor):
                self._region.take_piece(sender, text, row)

    def _rows(self, tensor: torch.Tensor) -> Iterator[torch.Tensor]:
        row = tensor.view(-1).view(torch.uint8)
        for first in self._pieces(row.numel(), self._region.channel_bytes):
            yield row[first : first + self._region.channel_bytes]

    @staticmethod
    def _pieces(count: int, longest: int) -> range:
        """Return the begins of pieces; an empty vector is also a piece: the ranks meet and compare their calls."""
        return range(0, max(count, 1), longest)

    def _meet(self, *, is_first: bool = False) -> None:
        self._region.meet()
        if is_first:
            self._region.compare()

    @contextmanager
    def _collective(self, text: str, *, is_pair: bool = False) -> Iterator[None]:
        if self._broken:
            raise PeerLost(f"{self._broken}; start all ranks again", rank=self.rank)
        self._region.begin(text, is_pair=is_pair)
        ports = self._ports
        if ports is not None:
            ports.begin_here(text, is_pair=is_pair)
        try:
            yield
        except InvalidArgument:  # raised on all ranks at the same meeting: they may go on
            self._end()
            raise
        except BaseException as cause:
            self._broken = f"a collective of this group failed before ({cause})"
            self._region.leave()
            raise
        self._end()

    def _end(self) -> None:
        self._region.end()
        if self._ports is not None:
            self._ports.end_here()
