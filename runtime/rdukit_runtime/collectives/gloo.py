"""Collectives of ranks on several machines, over torch's gloo, with the same bits as in shared memory.

gloo's own sums follow its algorithm. Here slices go to their owners (all-to-all), who add them in rank order, and
results come back by all-gather. Source: ours.
"""

import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import torch
import torch.distributed as dist

from rdukit.errors import InvalidArgument, PeerLost
from rdukit_runtime.collectives.group import TEXT_BYTES, Collectives, bytes_of, compare_calls, text_of
from rdukit_runtime.collectives.membership import GroupRanks
from rdukit_runtime.collectives.ports import RankPorts, find_ports
from rdukit_runtime.collectives.sums import Adder, Flat, Reduction, slice_of
from rdukit_runtime.engine.torch_private import wait_limit_of

#: Elements that travel together.
_PIECE: Final = 1 << 22
#: All data planes that there are.
_open: "Final[weakref.WeakSet[Gloo]]" = weakref.WeakSet()


def close_planes() -> None:
    """Leave all groups.

    If a group is still referenced when Python ends, its threads meet the C++ library's clean-up, which ends the process
    with SIGABRT.
    """
    for plane in list(_open):
        plane.close()


class Gloo(Collectives):
    """The data plane between machines."""

    def __init__(
        self, group: dist.ProcessGroup, ranks: GroupRanks | None = None, ports: RankPorts | None = None
    ) -> None:  # fmt: skip
        ports = find_ports(group) if ports is None else ports
        super().__init__(group.rank(), group.size(), ports.ranks if ranks is None and ports is not None else ranks)
        self._held: dist.ProcessGroup | None = group
        self._adder = Adder()
        #: Ports of the ranks; None: they are not known.
        self.ports = ports
        _open.add(self)

    @property
    def _group(self) -> dist.ProcessGroup:
        if self._held is None:
            raise PeerLost("this rank has left the group; start all ranks again", rank=self.rank)
        return self._held

    def note(self, doing: str) -> None:
        """Report this rank's activity between collectives."""
        if self.ports is not None:
            self.ports.note(doing)

    def close(self) -> None:
        """Leave the group. Its connections end with torch's last reference to it, and the others notice."""
        if self.ports is not None:
            self.ports.leave()
        self._held = None

    @contextmanager
    def _collective(self, text: str) -> Iterator[None]:
        """Run a collective of all ranks, and name the ranks that it loses, if that is known."""
        ports = self.ports
        if ports is None:
            yield
            return
        ports.begin(text)
        try:
            yield
        except InvalidArgument:  # raised on all ranks: they may go on
            ports.end()
            raise
        except RuntimeError as cause:
            lost = ports.explain_loss(cause, self._limit_s())
            if lost is None:
                raise
            raise lost from cause
        ports.end()

    @contextmanager
    def _pair(self, peer: int, text: str) -> Iterator[None]:
        """Send to a rank or receive from it, and name it if it is lost."""
        ports = self.ports
        if ports is None:
            yield
            return
        with ports.pair(text):
            try:
                yield
            except RuntimeError as cause:
                lost = ports.explain_pair(peer, cause, self._limit_s())
                if lost is None:
                    raise
                raise lost from cause

    def _limit_s(self) -> float:
        return wait_limit_of(self._group).total_seconds()

    def barrier(self) -> None:
        """Wait until every rank is here."""
        with self._collective("barrier"):
            self._compare("barrier")

    def _all_reduce(
        self, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], reduction: Reduction, text: str
    ) -> None:
        with self._collective(text):
            self._compare(text)
            read, written, dtype = Flat(inputs), Flat(outputs), inputs[0].dtype
            for first in range(0, read.count, _PIECE):
                last = min(first + _PIECE, read.count)
                low, high = slice_of(last - first, 0, self.size)
                each = high - low
                sent = torch.zeros(each * self.size, dtype=dtype)  # slices of equal length; the last ones may be padded
                read.read(first, last, sent)
                made = torch.empty_like(sent)
                self._gather(self._reduce_parts(sent, reduction), made)
                written.write(first, last, made)

    def _reduce_parts(self, sent: torch.Tensor, reduction: Reduction) -> torch.Tensor:
        """Return this rank's of ``size`` equal parts of ``sent``, reduced over the ranks."""
        came = torch.empty_like(sent)
        self._group.alltoall_base(came.view(torch.uint8), sent.view(torch.uint8), [], []).wait()
        parts = came.view(self.size, -1)
        made = torch.empty_like(parts[0])
        self._adder.combine(list(parts), made, reduction)
        return made

    def _reduce_scatter(self, given: torch.Tensor, output: torch.Tensor, reduction: Reduction, text: str) -> None:
        with self._collective(text):
            self._compare(text)
            if given.numel():
                output.view(-1).copy_(self._reduce_parts(given.view(-1), reduction))

    def _all_gather(self, given: torch.Tensor, output: torch.Tensor, text: str) -> None:
        with self._collective(text):
            self._compare(text)
            if given.numel():
                self._gather(given.view(-1), output.view(-1))

    def _gather(self, part: torch.Tensor, whole: torch.Tensor) -> None:
        rows = list(whole.view(torch.uint8).view(self.size, -1))
        self._group.allgather([rows], [part.view(torch.uint8)]).wait()

    def _broadcast(self, rows: Sequence[torch.Tensor], root: int, text: str) -> None:
        with self._collective(text):
            self._compare(text)
            for row in rows:
                self._group.broadcast(row, root).wait()

    def _send(self, tensor: torch.Tensor, to: int, text: str) -> None:
        said = torch.empty(TEXT_BYTES, dtype=torch.uint8)
        with self._pair(to, f"send to rank {self.ranks.numbers[to]} {text}"):
            self._group.send([bytes_of(text)], to, 0).wait()
            self._group.recv([said], to, 0).wait()
            self._agree(to, text, text_of(said))
            if tensor.numel():
                self._group.send([tensor.view(-1).view(torch.uint8)], to, 0).wait()

    def _recv(self, tensor: torch.Tensor, sender: int, text: str) -> None:
        said = torch.empty(TEXT_BYTES, dtype=torch.uint8)
        with self._pair(sender, f"receive from rank {self.ranks.numbers[sender]} {text}"):
            self._group.recv([said], sender, 0).wait()
            self._group.send([bytes_of(text)], sender, 0).wait()
            self._agree(sender, text, text_of(said))
            if tensor.numel():
                self._group.recv([tensor.view(-1).view(torch.uint8)], sender, 0).wait()

    def _agree(self, peer: int, mine: str, other: str) -> None:
        numbers = self.ranks.numbers
        if mine != other:
            raise InvalidArgument(
                f"rank {numbers[self.rank]} sends or expects {mine}, but rank {numbers[peer]} {other}; use equal "
                "shapes and types on both ranks"
            )

    def _compare(self, text: str) -> None:
        """Check that all ranks call the same, which gloo does not."""
        compare_calls(self.exchange(text), self.ranks)

    def exchange(self, text: str) -> list[str]:
        """Return each rank's text, by rank; texts are cut after 512 bytes."""
        rows = [torch.empty(TEXT_BYTES, dtype=torch.uint8) for _ in range(self.size)]
        self._group.allgather([rows], [bytes_of(text)]).wait()
        return [text_of(row) for row in rows]
