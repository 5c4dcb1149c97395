"""Operations of administrators on allocation: cordon, drain, evict, maintenance windows.

A part of the pure decisions of ``daemon.NodeDaemon``. Programs lose leases that a drain or an administrator ends, and
get ``LeaseWithdrawn``; their scheduler restarts them elsewhere.

Source: ours; see ``rdukit_node.maintenance.model``.
"""

import hashlib
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from rdukit.errors import PermissionDenied
from rdukit_node.daemon.connections import NodeLedger, Response, lease_paths, ok
from rdukit_node.daemon.events import NodeEventKind
from rdukit_node.daemon.protocol import SndRequest
from rdukit_node.inventory import find_component
from rdukit_node.leases.allocator import Lease, LeaseId
from rdukit_node.maintenance.board import MaintenanceBoard, tiles_below
from rdukit_node.maintenance.model import Cordon, MaintenanceWindow
from rdukit_node.states import LeaseEvent

logger = logging.getLogger(__name__)

#: Values of a tile's ``cordon`` and of a cordon's ``state``: not allocated; its lease must end; its lease has ended.
CORDONED, DRAINING, DRAINED = "cordoned", "draining", "drained"


class MaintenanceOperations:
    """Operations on maintenance: all users may read; changes need an administrator and are logged as events."""

    def __init__(self, daemon: NodeLedger) -> None:
        self.board: Final = MaintenanceBoard(daemon.allocator.node)
        self._daemon = daemon
        self._windows_made = 0
        self.operations: Final[Mapping[str, Callable[[int, SndRequest, float], Response]]] = {
            "maintenance": self._list,
            "cordon": self._cordon,
            "uncordon": self._uncordon,
            "drain": self._drain,
            "evict": self._evict,
            "plan_maintenance": self._plan,
            "end_maintenance": self._end,
        }

    def restore(self, cordons: Iterable[Cordon], windows: Iterable[MaintenanceWindow], now: float) -> None:
        """Start from the rows of the previous daemon."""
        self.board.restore(cordons, windows, _ns(now))
        self._sync(now)

    def validate(self) -> None:
        """Raise ``AssertionError`` if the board contradicts itself."""
        self.board.validate()

    # -- looking -----------------------------------------------------------------------------------------------------

    def rows(self) -> dict[str, list[dict[str, object]]]:
        """Return the cordons, with their state and the leases on them, and the windows."""
        cordons = []
        for cordon in self.board.cordons.values():
            leases = [lease.id for lease in self._leases_on(self._tiles(cordon.component))]
            state = CORDONED if not cordon.is_draining else DRAINING if leases else DRAINED
            cordons.append({**cordon.as_json(), "state": state, "leases": leases})
        windows = sorted(self.board.windows.values(), key=lambda window: (window.starts_at, window.window))
        return {"cordons": cordons, "windows": [window.as_json() for window in windows]}

    def word_of(self, now: float) -> Callable[[int], str | None]:
        """Return a function from a tile's flat number to its cordon state; ``None``: no cordon."""
        held_back = self.board.held_back(_ns(now))
        draining = frozenset().union(*(part.tiles for part in self.board.draining()))
        holders = self._daemon.allocator.tile_holders

        def word(index: int) -> str | None:
            if index not in held_back:
                return None
            if index not in draining:
                return CORDONED
            return DRAINED if holders[index] is None else DRAINING

        return word

    def _list(self, number: int, message: SndRequest, now: float) -> Response:
        return ok(**self.rows())

    # -- changing ----------------------------------------------------------------------------------------------------

    def _cordon(self, number: int, message: SndRequest, now: float) -> Response:
        by = self._check_admin(number, message)
        cordon = self.board.cordon(_component(message), message.find_text("reason") or "", by, _ns(now))
        self._tell(NodeEventKind.CORDON, now, cordon.component, f"by {by}{_why(cordon.reason)}")
        return self._changed(now, cordon=self._row(cordon.component))

    def _drain(self, number: int, message: SndRequest, now: float) -> Response:
        by, deadline_s = self._check_admin(number, message), message.find_real("deadline_s")
        reason = message.find_text("reason") or ""
        cordon = self.board.drain(_component(message), reason, by, deadline_s, _ns(now))
        until = "without a deadline" if deadline_s is None else f"within {deadline_s:g} s"
        self._tell(NodeEventKind.DRAIN, now, cordon.component, f"{until}, by {by}{_why(reason)}")
        self._sync(now)
        self._end_due(now)
        return self._changed(now, cordon=self._row(cordon.component))

    def _uncordon(self, number: int, message: SndRequest, now: float) -> Response:
        by = self._check_admin(number, message)
        found = self.board.uncordon(_component(message), _ns(now))
        for cordon in found:
            self._tell(NodeEventKind.UNCORDON, now, cordon.component, f"by {by}")
        return self._changed(now, uncordoned=[cordon.component for cordon in found])

    def _evict(self, number: int, message: SndRequest, now: float) -> Response:
        by = self._check_admin(number, message)
        lease = self._daemon.allocator.find_active(LeaseId(message.text("lease")))
        note = f": {by}{_why(message.find_text('reason') or '')}"
        self._take_back(lease, LeaseEvent.EVICT, now, note)
        request, tiles = lease.request, lease_paths(self._daemon.allocator.node, lease)
        fields = {"lease": lease.id, "application": request.application, "tenant": request.tenant, "job": request.job}
        return self._changed(now, released={**fields, "tiles": list(tiles)})

    def _plan(self, number: int, message: SndRequest, now: float) -> Response:
        by, grace_s = self._check_admin(number, message), message.find_real("grace_s")
        component = find_component(self._daemon.allocator.node, _component(message)).path
        starts_at = message.number("starts_at", _ns(now))
        self._windows_made += 1
        seed = f"{component} {starts_at} {_ns(now)} {self._windows_made}"
        window = MaintenanceWindow(
            f"mw-{hashlib.sha256(seed.encode()).hexdigest()[:8]}", component, starts_at, message.find_number("ends_at"),
            None if grace_s is None else int(grace_s * 1e9), message.text("reason"), by,
        )  # fmt: skip
        self.board.plan(window, _ns(now))
        self._tell(NodeEventKind.MAINTENANCE, now, component, f"{window.window} planned by {by}{_why(window.reason)}")
        self.run_due_steps(now)
        return self._changed(now, window=window.as_json())

    def _end(self, number: int, message: SndRequest, now: float) -> Response:
        by = self._check_admin(number, message)
        window = self.board.end_window(message.text("window"))
        self._tell(NodeEventKind.MAINTENANCE, now, window.component, f"{window.window} ended by {by}")
        return self._changed(now, window=window.as_json())

    # -- due actions
    # ------------------------------------------------------------------------------------------------------

    def next_step_at(self) -> float | None:
        """Return when ``run_due_steps`` is due next."""
        due = [] if (change := self.board.next_window_change()) is None else [change]
        for part in self.board.draining():
            if part.deadline is not None and self._leases_on(part.tiles):
                due.append(part.deadline)
        return min(due) / 1e9 if due else None

    def run_due_steps(self, now: float) -> None:
        """Begin and end maintenance windows, and end the leases on draining tiles whose deadline has passed."""
        begun, over = self.board.advance(_ns(now))
        for window in begun:
            self._tell(NodeEventKind.MAINTENANCE, now, window.component, f"{window.window} began{_why(window.reason)}")
        for window in over:
            self._tell(NodeEventKind.MAINTENANCE, now, window.component, f"{window.window} ended in time")
        self._sync(now)
        self._end_due(now)

    def clock_stepped(self, seconds: float) -> None:
        """Shift the deadlines of drains by ``seconds``, by which the wall clock was set."""
        self.board.clock_stepped(_ns(seconds))

    def _end_due(self, now: float) -> None:
        for part in self.board.draining():
            if part.deadline is not None and part.deadline <= _ns(now):
                for lease in self._leases_on(part.tiles):
                    self._take_back(lease, LeaseEvent.DRAIN, now, f": {part.component}{_why(part.reason)}")

    def _take_back(self, lease: Lease, event: LeaseEvent, now: float, note: str) -> None:
        """End a lease without its programs' consent; they notice at their next step."""
        for page in self._daemon.pages_of(lease.id):
            page.interrupt()
        logger.warning("event=%s lease=%s application=%s note=%s", event, lease.id, lease.request.application, note)
        self._daemon.end(lease.id, event, now, self._daemon.pid_of(lease.id), note)

    # -- helpers -----------------------------------------------------------------------------------------------------

    def _sync(self, now: float) -> None:
        allocator = self._daemon.allocator
        allocator.held_back, allocator.upcoming = self.board.held_back(_ns(now)), self.board.upcoming(_ns(now))

    def _changed(self, now: float, **answer: object) -> Response:
        self._sync(now)
        return Response({"ok": True, **answer}, is_durable=True)

    def _row(self, component: str) -> dict[str, object]:
        return next(row for row in self.rows()["cordons"] if row["component"] == component)

    def _tiles(self, component: str) -> frozenset[int]:
        return tiles_below(self._daemon.allocator.node, component)

    def _leases_on(self, tiles: frozenset[int]) -> list[Lease]:
        return [lease for lease in self._daemon.allocator.leases.values() if not tiles.isdisjoint(lease.tiles)]

    def _tell(self, kind: NodeEventKind, now: float, component: str, reason: str) -> None:
        self._daemon.events.record_component(kind, now, component, reason)
        logger.info("event=%s component=%s reason=%s", kind, component, reason)

    def _check_admin(self, number: int, message: SndRequest) -> str:
        """Return the caller for the log and, for a service, the user it acts for."""
        connection = self._daemon.connections[number]
        if not connection.is_admin:
            raise PermissionDenied(
                f"{message.op} changes the node: run as root or as the daemon's user, or authorize with the token in "
                "the file admin.token"
            )
        caller = connection.peer.user or "token"
        behalf = message.find_text("on_behalf_of")
        return caller if behalf is None else f"{behalf} (through {caller})"


def _component(message: SndRequest) -> str:
    return message.text("component")


def _why(reason: str) -> str:
    return f": {reason}" if reason else ""


def _ns(now: float) -> int:
    return int(now * 1e9)
