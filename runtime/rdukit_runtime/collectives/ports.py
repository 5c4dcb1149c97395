"""Ports of a group's ranks, which tell a process that has ended from one that does not answer.

After a loss a rank asks all ports: a refused connection proves that the process has ended, and a rank that is at an
earlier collective keeps the others waiting. Source: ours.
"""

import json
import socket
import time
import weakref
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final

import torch.distributed as dist

from rdukit.errors import PeerLost
from rdukit_runtime.collectives.membership import Address, GroupRanks
from rdukit_runtime.collectives.rank_port import LARGEST, POLL_S, TRY_S, GroupActivity, RankPort, join_doing

_MOST_THREADS: Final = 64
#: Number of the collective of a rank that does not tell it.
_UNKNOWN: Final = 1 << 62
#: Seconds in which ranks notice a loss, one after the other.
_OTHERS_S: Final = 0.3
#: Number of the collective of a rank that is not in the group yet, or not any more.
_ABSENT: Final = -2
#: Ports of the ranks of torch's groups.
_PORTS: "Final[weakref.WeakKeyDictionary[dist.ProcessGroup, RankPorts]]" = weakref.WeakKeyDictionary()


class PortState(Enum):
    """State of another rank by its port."""

    RUNS, SILENT, ENDED, AWAY = auto(), auto(), auto(), auto()


@dataclass(frozen=True, slots=True)
class Seen:
    """A rank's state; if it runs, the number of its collective, whether its time in that has passed, and what it does.

    A rank that has left has a number below 0. ``has_named``: whether it has named those that the collective has lost.
    ``elsewhere``, ``note``: what it does in other groups, and between collectives.
    """

    state: PortState
    number: int = 0
    is_over: bool = False
    has_named: bool = False
    doing: str = ""
    elsewhere: str = ""
    note: str = ""

    @property
    def described(self) -> str:
        """Return the rank's activity, for people; empty: unknown."""
        return join_doing(self.doing, self.elsewhere, self.note) if self.doing else ""


class RankPorts:
    """The ports of a group's ranks, by place in the group.

    Args:
        own: this rank's. key: names the group on all of its ranks; no other group has it. places: addresses of all
            ports; ``None``: a rank has none. ranks: the launch's numbers of the ranks. place: this rank's.
    """

    def __init__(
        self, own: RankPort, key: str, places: Sequence[Address | None], ranks: GroupRanks, place: int
    ) -> None:  # fmt: skip
        self.ranks, self.places = ranks, list(places)
        self.own, self.key, self._place = own, key, place
        self._told = GroupActivity(ranks)
        own.enter(key, self._told)
        weakref.finalize(self, own.leave, key).atexit = False

    def begin(self, text: str) -> int:
        """Report the collective of all ranks that this rank begins; returns its number, which is the same on all."""
        told = self._told
        told.number, told.text, told.is_inside, told.work = told.number + 1, text, True, None
        told.is_over = told.has_named = False
        return told.number

    def watch(self, number: int, work: Any) -> None:
        """Take a collective as finished when its ``work`` is."""
        if self._told.number == number:
            self._told.work = weakref.ref(work)

    def end(self, number: int = 0) -> None:
        """Report that this rank has finished its collective; ``number``: only if it has begun no other."""
        if number in {0, self._told.number}:
            self._told.is_inside = False

    def begin_here(self, text: str, *, is_pair: bool) -> None:
        """Report the collective, or the sending or receiving, that this rank begins in shared memory."""
        if is_pair:
            self._told.pair = text
        else:
            self.begin(text)

    def end_here(self) -> None:
        """Report that this rank has finished what it began in shared memory."""
        self._told.pair = ""
        self.end()

    def note(self, doing: str) -> None:
        """Report this rank's activity between collectives."""
        self.own.note(doing)

    def leave(self) -> None:
        """Report that this rank joins no further collective."""
        self._told.number = -1

    @contextmanager
    def pair(self, text: str) -> Iterator[None]:
        """Report that this rank sends or receives."""
        self._told.pair = text
        try:
            yield
        finally:
            self._told.pair = ""

    def look(self, places: Sequence[int] | None = None, wait_s: float = TRY_S) -> list[Seen]:
        """Return what the ranks at ``places``, or all, tell within ``wait_s`` seconds, by default less than one."""
        asked = self.places if places is None else [self.places[place] for place in places]
        with ThreadPoolExecutor(min(_MOST_THREADS, len(asked) or 1)) as pool:
            return list(pool.map(lambda at: _ask(at, self.key, wait_s), asked))

    def explain_loss(self, cause: RuntimeError, limit_s: float) -> PeerLost | None:
        """Return the error that names the ranks that a collective of this rank has lost; None: they are not known.

        Args:
            cause: torch's. limit_s: time limit of the collective.
        """
        is_late, self._told.is_over = "imed out" in str(cause), True
        end = time.monotonic() + TRY_S
        while True:
            seen = self.look()
            lost = self._find_lost(seen, is_late, limit_s)
            if lost is not None:
                self._wait_for_others(seen)
                return lost
            if time.monotonic() > end:
                return None
            time.sleep(POLL_S)  # the connections of a process that ends are closed one after the other

    def _wait_for_others(self, seen: Sequence[Seen]) -> None:
        """Wait shortly until the others in this collective know it, too: then this rank may be one that has ended."""
        self._told.has_named = True
        end, own = time.monotonic() + _OTHERS_S, self._told.number
        while time.monotonic() < end and any(
            seen[of].number == own and not seen[of].has_named for of in self._those(seen, PortState.RUNS)
        ):
            time.sleep(POLL_S)
            seen = self.look()

    def _find_lost(self, seen: Sequence[Seen], is_late: bool, limit_s: float) -> PeerLost | None:
        ended, away = self._those(seen, PortState.ENDED), self._those(seen, PortState.AWAY)
        behind = self._find_slow(seen, self._told.number)
        if is_late and (lost := behind if behind or ended or away else self._find_stuck()):
            return self._name(lost, f"did not answer in time, within {limit_s:g} s", seen, is_certain=False)
        if ended:
            return self._name(ended, "died or ended", seen, behind)
        if away:
            return self._name(away, "cannot be reached", seen, behind, is_certain=False)
        if left := [of for of in self._those(seen, PortState.RUNS) if seen[of].number < 0]:
            return self._name(left, "gave up or left the group", seen)
        return None

    def explain_pair(self, peer: int, cause: RuntimeError, limit_s: float) -> PeerLost | None:
        """Return the error for a peer that this rank sends to or receives from; None: it runs."""
        seen = self.look()
        state = seen[peer].state
        if "imed out" in str(cause) and state is not PortState.ENDED:
            return self._name([peer], f"did not answer in time, within {limit_s:g} s", seen, is_certain=False)
        if state is PortState.ENDED:
            return self._name([peer], "died or ended", seen)
        if state is PortState.AWAY:
            return self._name([peer], "cannot be reached", seen, is_certain=False)
        if seen[peer].number < 0:
            return self._name([peer], "gave up or left the group", seen)
        return None

    def _name(
        self, lost: Sequence[int], reason: str, seen: Sequence[Seen], behind: Sequence[int] = (), *,
        is_certain: bool = True,
    ) -> PeerLost:  # fmt: skip
        """Return the error for lost ranks; ``behind``: others that may be the reason why those ended."""
        numbers = self.ranks.numbers
        doing = [f"rank {numbers[of]} {seen[of].described}" for of in (*lost, *behind) if seen[of].doing]
        told = "; ".join([*doing, f"rank {numbers[self._place]} {self.own.describe(self._told)}"])
        silent = "" if is_certain else ", ".join(map(str, self.ranks.at(lost)))
        return PeerLost(f"{self.ranks.name(lost)} {reason} ({told})", rank=numbers[self._place], silent=silent)

    def _find_stuck(self) -> list[int]:
        """Return the ranks that are in this rank's collective, and whose time does not pass with that of the others."""
        end = time.monotonic() + TRY_S
        while True:
            seen, own = self.look(), self._told.number
            running = self._those(seen, PortState.RUNS)
            stuck = [of for of in running if seen[of].number == own and not seen[of].is_over]
            if not stuck or time.monotonic() > end:
                return stuck
            time.sleep(POLL_S)

    def _those(self, seen: Sequence[Seen], state: PortState) -> list[int]:
        """Return the other ranks in a state."""
        return [of for of, each in enumerate(seen) if of != self._place and each.state is state]

    def _find_slow(self, seen: Sequence[Seen], own: int) -> list[int]:
        """Return the ranks that are silent, not in the group yet, or at a collective before ``own``."""
        running = self._those(seen, PortState.RUNS)
        late = [of for of in running if seen[of].number == _ABSENT or 0 <= seen[of].number < own]
        return sorted([*self._those(seen, PortState.SILENT), *late])


def keep_ports(group: dist.ProcessGroup, ports: RankPorts) -> None:
    """Keep the ports of a group's ranks as long as the group."""
    _PORTS[group] = ports


def find_ports(group: dist.ProcessGroup) -> RankPorts | None:
    """Return the ports of a group's ranks; None: they are not known."""
    return _PORTS.get(group)


def _ask(place: Address | None, key: str, wait_s: float) -> Seen:
    if place is None:
        return Seen(PortState.RUNS, _UNKNOWN)
    end, content = time.monotonic() + wait_s, b""
    try:
        with socket.create_connection(place, wait_s) as connection:
            while len(content) < LARGEST:
                connection.settimeout(max(end - time.monotonic(), 0.001))
                if not (part := connection.recv(LARGEST)):
                    break
                content += part
    except ConnectionRefusedError:
        return Seen(PortState.ENDED)
    except OSError as cause:
        is_there = isinstance(cause, ConnectionError)
        return Seen(PortState.ENDED if is_there else PortState.SILENT if content else _find_reach(place))
    return _read(content.decode(errors="replace"), key)


def _read(text: str, key: str) -> Seen:
    """Return a rank's state in a group by the text of its port, which has a line for each group that it is in."""
    with suppress(ValueError, TypeError, OverflowError, RecursionError):  # another program may answer there
        for line in text.splitlines():
            name, number, is_over, has_named, *texts = json.loads(line)
            if name == key:
                return Seen(PortState.RUNS, int(number), bool(is_over), bool(has_named), *map(str, texts))
        return Seen(PortState.RUNS, _ABSENT)
    return Seen(PortState.SILENT)


def _find_reach(place: Address) -> PortState:
    """Return the state of a port without a report: the kernel of a stopped process still accepts connections."""
    try:
        socket.create_connection(place, POLL_S).close()
    except ConnectionRefusedError:
        return PortState.ENDED
    except OSError:
        return PortState.AWAY
    return PortState.SILENT
