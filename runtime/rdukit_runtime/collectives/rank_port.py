"""The port at which a process tells the other ranks what it does, in each of its groups.

gloo says only that a connection broke or a time has passed. The port is open until the process ends or has left all
groups. It tells everybody who connects, and reads nothing. Source: ours.
"""

import json
import os
import socket
import threading
import time
import weakref
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from rdukit_runtime.collectives.membership import Address, GroupRanks

#: Seconds in which a port must answer, and in which it sends.
TRY_S: Final = 0.8
POLL_S: Final = 0.02
#: Bytes that a port sends at most, and characters of a text.
LARGEST: Final = 1 << 16
_TEXT: Final = 400
#: Sockets at which this process listens.
_LISTENERS: "Final[weakref.WeakSet[socket.socket]]" = weakref.WeakSet()
#: Ports of this process, by process id and address; a fork makes its own.
_OWN: "Final[weakref.WeakValueDictionary[tuple[int, str], RankPort]]" = weakref.WeakValueDictionary()


@dataclass(slots=True)
class GroupActivity:
    """A rank's activity in one group.

    Args:
        number: of its last collective; 0: none, -1: it has left. is_inside: whether it is in that collective. is_over:
            whether the time of the collective has passed. text: name of the collective. work: the collective if it
            runs beside the program. has_named: whether this rank has named those that the collective has lost. pair:
            sending or receiving that it is in; empty: none.
    """

    ranks: GroupRanks
    number: int = 0
    is_inside: bool = False
    is_over: bool = False
    text: str = ""
    work: "weakref.ref[Any] | None" = None
    has_named: bool = False
    pair: str = ""

    def find_current(self) -> str:
        """Return the collective, the sending or the receiving that the rank is in; empty: none."""
        if self.pair:
            return self.pair
        is_inside = self.is_inside
        if is_inside and self.work is not None:  # the port's thread asks: it must not change what the program tells
            work = self.work()
            is_inside = work is not None and not work.is_finished()
        return f"collective {self.number}, {self.text}" if is_inside and self.number > 0 else ""

    def describe(self) -> str:
        """Return the activity, for people."""
        if current := self.find_current():
            return f"is in {current}"
        return f"finished collective {self.number}, {self.text}" if self.number > 0 else "has begun no collective"


@dataclass(slots=True)
class _Told:
    """State that a port tells: the activity in each group by its key, and other work."""

    activities: dict[str, GroupActivity] = field(default_factory=dict)
    note: str = ""

    def text(self) -> str:
        """Return a line for each group, the last one first."""
        groups = reversed(self.activities.copy().items())  # a copy: other threads and finalizers change it
        lines, length = list[str](), 0
        for key, of in groups:
            doing, more = of.describe()[:_TEXT], self.elsewhere(of)[:_TEXT]
            lines.append(json.dumps([key, of.number, of.is_over, of.has_named, doing, more, self.note[:_TEXT]]))
            length += len(lines[-1]) + 1
            if length > LARGEST:
                return "\n".join(lines[:-1])
        return "\n".join(lines)

    def elsewhere(self, of: GroupActivity) -> str:
        """Return the activity in other groups, in the form that follows the one in this group; empty: none."""
        for other in self.activities.copy().values() if not of.find_current() else ():
            if other is not of and (current := other.find_current()):
                return f", and is in {current} of {other.ranks.described}"
        return ""


class RankPort:
    """The port of a rank. Without a listener it tells nothing.

    Args:
        listener: it is closed with this object.
    """

    def __init__(self, listener: socket.socket | None) -> None:
        self._told = _Told()
        #: Address of the port.
        self.place: Address | None = None
        if listener is not None:
            host, port = listener.getsockname()[:2]
            self.place = str(host), int(port)
            keep_from_forks(listener)
            threading.Thread(target=_answer, args=(listener, self._told), name="rank-port", daemon=True).start()
            weakref.finalize(self, _close, listener, os.getpid()).atexit = False

    def note(self, doing: str) -> None:
        """Tell this rank's activity between collectives."""
        self._told.note = doing

    def enter(self, key: str, activity: GroupActivity) -> None:
        """Tell the activity in a group from now on."""
        self._told.activities[key] = activity

    def leave(self, key: str) -> None:
        """Tell nothing more of a group."""
        self._told.activities.pop(key, None)

    def describe(self, activity: GroupActivity) -> str:
        """Return this rank's activity, in a group and elsewhere, for people."""
        told = self._told
        return join_doing(activity.describe(), told.elsewhere(activity), told.note)


def join_doing(doing: str, elsewhere: str, note: str) -> str:
    """Return a rank's activity in a group, in other groups, and between collectives, for people."""
    return f"{doing}{elsewhere}{f', and is {note}' if note else ''}"


def own_port(address: str) -> RankPort:
    """Return this process's port at an address of this machine; empty: a port that tells nothing."""
    key = os.getpid(), address
    port = _OWN.get(key)
    if port is None:
        listener = None
        if address:
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            with suppress(OSError):
                listener = socket.create_server((address, 0), family=family, backlog=socket.SOMAXCONN)
        port = _OWN[key] = RankPort(listener)
    return port


def keep_from_forks(listener: socket.socket) -> None:
    """Close a listening socket in forks of this process: while one had it open, the port would not refuse."""
    _LISTENERS.add(listener)


def _close_inherited() -> None:
    for listener in tuple(_LISTENERS):
        listener.close()


os.register_at_fork(after_in_child=_close_inherited)


def _answer(listener: socket.socket, told: _Told) -> None:
    while listener.fileno() >= 0:
        try:
            connection, _ = listener.accept()
        except OSError:
            time.sleep(POLL_S)  # no descriptor is free, or the port is closed
            continue
        with connection, suppress(OSError):
            connection.settimeout(TRY_S)
            connection.sendall(told.text().encode())


def _close(listener: socket.socket, pid: int) -> None:
    """Close the port. A fork leaves it to the process that serves."""
    if os.getpid() == pid:
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)  # ends the thread's call
        listener.close()
