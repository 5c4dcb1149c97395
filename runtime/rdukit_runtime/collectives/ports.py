"""Ports of ranks of several machines, which tell a process that has ended from one that does not answer.

gloo says only that a connection broke or a time has passed. Here each rank has a port of its own until its process
ends, and tells everybody who connects what it does; it reads nothing. After a loss a rank asks all ports: a refused
connection proves that the process has ended, and a rank that is at an earlier collective keeps the others waiting.
Source: ours.
"""

import os
import socket
import threading
import time
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

import torch.distributed as dist

from rdukit.errors import PeerLost
from rdukit_runtime.collectives.membership import Address, name_ranks

#: Seconds in which a port must answer.
_TRY_S: Final = 0.8
_POLL_S: Final = 0.02
_MOST_THREADS: Final = 64
_LARGEST: Final = 1024
#: Number of the collective of a rank without a port.
_UNKNOWN: Final = 1 << 62
#: Ports of the ranks of torch's groups.
_PORTS: "Final[weakref.WeakKeyDictionary[dist.ProcessGroup, RankPorts]]" = weakref.WeakKeyDictionary()


class PortState(Enum):
    """State of another rank by its port."""

    RUNS, SILENT, ENDED, AWAY = auto(), auto(), auto(), auto()


@dataclass(frozen=True, slots=True)
class Seen:
    """A rank's state; if it runs, the number of its collective, whether its time in that has passed, and what it does.

    A rank that has left has the number -1.
    """

    state: PortState
    number: int = 0
    is_over: bool = False
    doing: str = ""


@dataclass(slots=True)
class _Told:
    """State that a rank reports: its collective's number and text, whether it is inside, and other work."""

    number: int = 0
    is_inside: bool = False
    is_over: bool = False
    text: str = ""
    note: str = ""

    def line(self) -> str:
        """Return the text that the port sends."""
        return f"{self.number} {int(self.is_over)} {self.describe()}"

    def describe(self) -> str:
        """Return this rank's activity, for people."""
        verb = "is in" if self.is_inside else "finished"
        doing = f"{verb} collective {self.number}, {self.text}" if self.number > 0 else "has begun no collective"
        return f"{doing}, and is {self.note}" if self.note else doing


class RankPorts:
    """Port of a rank, and the ports of all ranks; ``None``: a rank has none.

    Args:
        listener: this rank's; it is closed with this object.
    """

    def __init__(self, listener: socket.socket | None, places: Sequence[Address | None]) -> None:
        self._places = list(places)
        self._told = _Told()
        if listener is not None:
            threading.Thread(target=_answer, args=(listener, self._told), name="rank-port", daemon=True).start()
            weakref.finalize(self, _close, listener, os.getpid()).atexit = False

    def begin(self, number: int, text: str) -> None:
        """Report the collective that this rank begins; ``number`` is the same on all ranks."""
        self._told.number, self._told.text, self._told.is_inside, self._told.is_over = number, text, True, False

    def end(self) -> None:
        """Report that this rank has finished its collective."""
        self._told.is_inside = False

    def note(self, doing: str) -> None:
        """Report this rank's activity between collectives."""
        self._told.note = doing

    def leave(self) -> None:
        """Report that this rank joins no further collective."""
        self._told.number = -1

    def look(self) -> list[Seen]:
        """Return what the ranks tell, by rank, within a second."""
        with ThreadPoolExecutor(min(_MOST_THREADS, len(self._places))) as pool:
            return list(pool.map(_ask, self._places))

    def explain_loss(self, rank: int, cause: RuntimeError, limit_s: float) -> PeerLost | None:
        """Return the error that names the ranks that a collective of this rank has lost; None: they are not known.

        Args:
            cause: torch's. limit_s: time limit of the collective.
        """
        is_late, self._told.is_over = "imed out" in str(cause), True
        seen, own = self.look(), self._told.number
        ended, away = _those(seen, rank, PortState.ENDED), _those(seen, rank, PortState.AWAY)
        lost, silent = _slow(seen, rank, own) if is_late else [], ""
        if is_late and not (lost or ended or away):
            lost = self._find_stuck(rank)
        if lost:
            reason, silent = f"did not answer in time, within {limit_s:g} s", ", ".join(map(str, lost))
        elif lost := ended:
            reason = "died or ended"
        elif lost := away:
            reason, silent = "cannot be reached", ", ".join(map(str, lost))
        elif lost := [of for of in _those(seen, rank, PortState.RUNS) if seen[of].number < 0]:
            reason = "gave up or left the group"
        else:
            return None
        doing = [f"rank {of} {seen[of].doing}" for of in lost if seen[of].doing]
        told = "; ".join([*doing, f"rank {rank} {self._told.describe()}"])
        return PeerLost(f"{name_ranks(lost)} of {len(seen)} {reason} ({told})", rank=rank, silent=silent)

    def _find_stuck(self, rank: int) -> list[int]:
        """Return the ranks that are in this rank's collective, and whose time does not pass with that of the others."""
        end = time.monotonic() + _TRY_S
        while True:
            seen, own = self.look(), self._told.number
            running = _those(seen, rank, PortState.RUNS)
            stuck = [of for of in running if seen[of].number == own and not seen[of].is_over]
            if not stuck or time.monotonic() > end:
                return stuck
            time.sleep(_POLL_S)


def _those(seen: Sequence[Seen], rank: int, state: PortState) -> list[int]:
    """Return the other ranks in a state."""
    return [of for of, each in enumerate(seen) if of != rank and each.state is state]


def _slow(seen: Sequence[Seen], rank: int, own: int) -> list[int]:
    """Return the ranks that are silent, or at a collective before ``own``."""
    late = [of for of in _those(seen, rank, PortState.RUNS) if 0 <= seen[of].number < own]
    return sorted([*_those(seen, rank, PortState.SILENT), *late])


def keep_ports(group: dist.ProcessGroup, ports: RankPorts) -> None:
    """Keep the ports of a group's ranks as long as the group."""
    _PORTS[group] = ports


def find_ports(group: dist.ProcessGroup) -> RankPorts | None:
    """Return the ports of a group's ranks; None: they are not known."""
    return _PORTS.get(group)


def _ask(place: Address | None) -> Seen:
    if place is None:
        return Seen(PortState.RUNS, _UNKNOWN)
    end, content = time.monotonic() + _TRY_S, b""
    try:
        with socket.create_connection(place, _TRY_S) as connection:
            while len(content) < _LARGEST:
                connection.settimeout(max(end - time.monotonic(), 0.001))
                if not (part := connection.recv(_LARGEST)):
                    break
                content += part
    except ConnectionRefusedError:
        return Seen(PortState.ENDED)
    except OSError as cause:
        is_there = isinstance(cause, ConnectionError)
        return Seen(PortState.ENDED if is_there else PortState.SILENT if content else _find_reach(place))
    number, _, rest = content.decode(errors="replace").partition(" ")
    with suppress(ValueError):
        return Seen(PortState.RUNS, int(number), rest.startswith("1"), rest.partition(" ")[2])
    return Seen(PortState.SILENT)


def _find_reach(place: Address) -> PortState:
    """Return the state of a port without a report: the kernel of a stopped process still accepts connections."""
    try:
        socket.create_connection(place, _POLL_S).close()
    except ConnectionRefusedError:
        return PortState.ENDED
    except OSError:
        return PortState.AWAY
    return PortState.SILENT


def _answer(listener: socket.socket, told: _Told) -> None:
    while listener.fileno() >= 0:
        try:
            connection, _ = listener.accept()
        except OSError:
            time.sleep(_POLL_S)  # no descriptor is free, or the port is closed
            continue
        with connection, suppress(OSError):
            connection.settimeout(_TRY_S)
            connection.sendall(told.line().encode()[:_LARGEST])


def _close(listener: socket.socket, pid: int) -> None:
    """Close the port. A fork leaves it to the process that serves."""
    if os.getpid() == pid:
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)  # ends the thread's call
        listener.close()
