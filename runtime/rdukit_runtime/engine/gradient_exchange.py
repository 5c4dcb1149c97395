"""Averages a program's gradients over ranks while backward computes the next ones.

Gradients have places in memory that all ranks of the machine share (between machines: in this process), and backward's
sections write them there. A thread averages group after group in place; ``reduce`` waits for the rest. Between runs the
thread has nothing to do, so a program may call collectives itself. Source: runtime reference 9 (overlap); the way is
ours.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, Final

import torch

from rdukit.errors import PeerLost
from rdukit.pef.model import Pef
from rdukit.settings import resolve
from rdukit_runtime.collectives.elastic import Elastic, join_elastic, open_elastic
from rdukit_runtime.collectives.group import Collectives
from rdukit_runtime.collectives.grouping import GradientGroup, choose_group_bytes, find_ready, group_gradients
from rdukit_runtime.collectives.replacement import JoiningProcessGroup, RankTensors
from rdukit_runtime.collectives.sums import Reduction
from rdukit_runtime.engine.collectives import all_reduce_mean, peer_errors
from rdukit_runtime.settings import DISTRIBUTED_GROUP_BYTES, DISTRIBUTED_OVERLAP

#: Bytes at whose multiples gradients begin.
_ALIGNMENT: Final = 64
#: Bytes and calls by which links are measured.
_LONG_BYTES: Final = 1 << 20
_CALLS: Final = 5


@dataclass(frozen=True, slots=True, eq=False)
class PlacedGroup:
    """A group: the section after which it leaves, the slots of its gradients, their memory as a tensor per dtype."""

    label: str
    section: int
    slots: tuple[int, ...]
    #: Replaced after the loss of a rank: the others get new memory.
    rows: list[torch.Tensor]
    #: Copies of the rank's own gradients, while a lost rank must not end the others; else empty.
    saved: tuple[torch.Tensor, ...]


@dataclass(slots=True)
class ExchangeTimes:
    """Seconds of all runs so far."""

    runs: int = 0
    #: Time from a group's turn until it is averaged; and the part of it in which ``reduce`` waited and nothing
    #: computed.
    seconds: float = 0.0
    waited_seconds: float = 0.0

    @property
    def hidden_share(self) -> float:
        """Part of the exchange during which this rank computed."""
        return max(0.0, 1 - self.waited_seconds / self.seconds) if self.seconds else 0.0


class GradientExchange:
    """The places of a program's gradients, and the thread that averages them.

    All ranks create theirs at the same time: creation is a collective.

    Args:
        slots: slot of each symbol. group: collectives of ranks that have met; for the new process of a lost rank, the
            group that it has until it joins. state: data for such a process.
    """

    def __init__(
        self, pef: Pef, slots: Mapping[str, int], group: Collectives | JoiningProcessGroup,
        state: RankTensors | None = None,
    ) -> None:  # fmt: skip
        #: Whether groups leave while backward runs; else ``reduce`` sends them all.
        self.overlaps = resolve(DISTRIBUTED_OVERLAP)
        self._thread = ThreadPoolExecutor(1, "gradients")
        #: Groups under way in this run, in order.
        self._begun: dict[PlacedGroup, Future[None]] = {}
        #: Whether a group of this run could not be averaged; the following ones are dropped.
        self._has_failed = False
        self.times = ExchangeTimes()
        #: Makes a new group after a loss; None: a lost rank ends the others.
        self._elastic: Elastic | None
        if isinstance(group, JoiningProcessGroup):
            assert state is not None, "a new process receives it"
            self._elastic = joined = join_elastic(group, state)
            self._collectives, self.group_bytes = joined.collectives, joined.group_bytes
        else:
            self._collectives = group
            self._elastic = open_elastic(group, state)
            self.group_bytes = self._agree_on_size()
            if self._elastic is not None:
                self._elastic.group_bytes = self.group_bytes
        #: Slot of a gradient → its place.
        self.homes: dict[int, torch.Tensor] = {}
        #: Graph → its groups, in the order of averaging; empty if gradients have no places.
        self.groups: dict[str, tuple[PlacedGroup, ...]] = {}
        grouped = {
            name: group_gradients(find_ready(pef, graph), self.group_bytes) for name, graph in pef.graphs.items()
        }
        total = sum(_padded(g.bytes) for groups in grouped.values() for group in groups for g in group.gradients)
        self._total = total
        memory = self._collectives.allocate(max(total, 1))
        self.addresses = range(memory.data_ptr(), memory.data_ptr() + total)
        self._saved = torch.empty(total if self._elastic else 0, dtype=torch.uint8)
        at = 0
        for name, groups in grouped.items():
            placed = []
            for each in groups:
                made, at = self._place(pef, slots, each, memory, at)
                placed.append(made)
            self.groups[name] = tuple(placed)
        self._collectives.stragglers.clear()

    def _agree_on_size(self) -> int:
        """Return the bytes of a group: rank 0's setting or measurement, on every rank."""
        latency_s, bytes_s = measure_links(self._collectives)
        wanted = resolve(DISTRIBUTED_GROUP_BYTES) or choose_group_bytes(latency_s, bytes_s)
        return int(self._collectives.exchange(str(wanted))[0])

    def _place(
        self, pef: Pef, slots: Mapping[str, int], group: GradientGroup, memory: torch.Tensor, at: int
    ) -> tuple[PlacedGroup, int]:
        """Give a group's gradients places from byte ``at`` on, those of a dtype in a row; also return their end."""
        by_type: dict[torch.dtype, list[str]] = {}
        for gradient in group.gradients:
            by_type.setdefault(getattr(torch, pef.symbols[gradient.name].dtype), []).append(gradient.name)
        rows, saved = [], []
        for dtype, names in by_type.items():
            first = at
            for name in names:
                symbol = pef.symbols[name]
                self.homes[slots[name]] = memory[at : at + symbol.bytes].view(dtype).view(symbol.shape)
                at += _padded(symbol.bytes)
            rows.append(memory[first:at].view(dtype))
            saved.append(self._saved[first:at].view(dtype))
        found = tuple(slots[gradient.name] for gradient in group.gradients)
        copies = tuple(saved) if self._elastic else ()
        return PlacedGroup(group.label, group.section, found, rows, copies), at

    def note(self, doing: str) -> None:
        """Record this rank's activity, for errors of ranks that wait for it."""
        self._collectives.note(doing)

    def begin(self, group: PlacedGroup, slots: list[torch.Tensor | None]) -> None:
        """Begin to average a group whose gradients are final; ``slots`` hold them."""
        for slot in group.slots:
            home, held = self.homes[slot], slots[slot]
            if held is not home:  # made before the ranks met
                assert held is not None, "reduce needs its gradients"
                slots[slot] = home.copy_(held)
        self._begun[group] = self._thread.submit(self._average, group)

    def finish(self, groups: Sequence[PlacedGroup], slots: list[torch.Tensor | None]) -> dict[int, torch.Tensor]:
        """Begin the remaining groups, and wait until all are averaged in their places.

        Returns:
            The former places by slot, if a rank was lost and the others continue with new places.
        Raises:
            PeerLost: a rank died or does not answer. InvalidArgument: the ranks have other gradients.
        """
        began = time.perf_counter()
        for group in groups:
            if group not in self._begun:
                self.begin(group, slots)

        def average() -> None:
            for future in self._begun.values():
                future.result()

        def average_again() -> None:
            self._has_failed = False
            for group in groups:
                for row, saved in zip(group.rows, group.saved, strict=True):
                    row.copy_(saved)
                self._reduce(group)

        former = self._until_averaged(average, average_again)
        self._begun.clear()
        self.times.waited_seconds += time.perf_counter() - began
        self.times.runs += 1
        return former

    def average(self, gradients: list[torch.Tensor]) -> tuple[list[torch.Tensor], dict[int, torch.Tensor]]:
        """Average gradients without places: those that are summed over several backwards.

        Returns:
            Their means, and what ``finish`` returns.
        """
        means: list[torch.Tensor] = []

        def average() -> None:
            means[:] = all_reduce_mean(gradients)

        former = self._until_averaged(average, average)
        return means, former

    def _until_averaged(self, average: Callable[[], None], again: Callable[[], None]) -> dict[int, torch.Tensor]:
        """Call ``average``, and ``again`` for each loss after which the ranks that are left average this step again."""
        elastic, former, is_averaged = self._elastic, dict[int, torch.Tensor](), False
        if elastic is None:
            average()
            return former
        attempt = average
        while True:
            try:
                attempt()
                is_averaged = True
                with peer_errors("finishing a step"):
                    elastic.commit()
                return former
            except PeerLost as error:
                loss = error
            wait(self._begun.values())
            is_over = not elastic.regroup(loss, is_averaged)
            self._collectives, is_averaged = elastic.collectives, is_over
            held = dict(self.homes)
            self._move(elastic.collectives)
            former = former or held
            if is_over:
                return former
            attempt = again

    def _move(self, collectives: Collectives) -> None:
        """Give all gradients places in the remaining ranks' memory, with the values of the former places.

        A collective. No lost rank that still runs can write there.
        """
        memory = collectives.allocate(max(self._total, 1))
        first = self.addresses.start
        self.addresses = range(memory.data_ptr(), memory.data_ptr() + self._total)

        def moved(tensor: torch.Tensor) -> torch.Tensor:
            at = tensor.data_ptr() - first
            return memory[at : at + tensor.nbytes].view(tensor.dtype).view(tensor.shape).copy_(tensor)

        self.homes.update({slot: moved(home) for slot, home in self.homes.items()})
        for groups in self.groups.values():
            for group in groups:
                group.rows[:] = [moved(row) for row in group.rows]

    def abandon(self) -> None:
        """Drop the waiting groups, and wait for the current one: the run has failed."""
        for future in self._begun.values():
            future.cancel()
        wait(self._begun.values())
        self._begun.clear()
        self._has_failed = False

    def _average(self, group: PlacedGroup) -> None:
        for row, saved in zip(group.rows, group.saved, strict=False):  # no copies where a loss ends all ranks
            saved.copy_(row)
        if self._has_failed:
            return  # the others drop it, too
        began = time.perf_counter()
        try:
            self._reduce(group)
        except BaseException:
            self._has_failed = True
            raise
        self.times.seconds += time.perf_counter() - began

    def _reduce(self, group: PlacedGroup) -> None:
        with peer_errors("averaging gradients"):
            for row in group.rows:
                self._collectives.all_reduce([row], [row], Reduction.MEAN, group.label)

    def figures(self) -> dict[str, Any]:
        """Return what ``session.report()`` says of the exchange."""
        return {
            "group_bytes": self.group_bytes, "groups": sum(map(len, self.groups.values())), "runs": self.times.runs,
            "seconds": self.times.seconds, "waited_seconds": self.times.waited_seconds,
            "hidden_share": self.times.hidden_share, "ranks": self._collectives.stragglers.table(),
            "losses": self._elastic.losses if self._elastic else [], "bytes": self._total,
            "world_size": self._collectives.size,
        }  # fmt: skip


def measure_links(collectives: Collectives) -> tuple[float, float]:
    """Return the seconds of an allreduce of one number, and the bytes that a long one moves in a second; a collective.

    The shortest of several calls counts: others may have waited for a processor.
    """
    long = collectives.allocate(_LONG_BYTES).view(torch.float32)
    shortest = []
    for row in (long[:1], long):
        times = []
        for _ in range(_CALLS):
            collectives.barrier()
            began = time.perf_counter()
            collectives.all_reduce([row], [row])
            times.append(time.perf_counter() - began)
        shortest.append(min(times))
    return shortest[0], _LONG_BYTES / max(shortest[1] - shortest[0], 1e-6)


def _padded(count_bytes: int) -> int:
    return -(-count_bytes // _ALIGNMENT) * _ALIGNMENT
