"""Faults and changes of a node: the third part of the pure decisions of ``daemon.NodeDaemon``."""

import heapq
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Final, TypeVar

from rdukit.errors import HwException, InvalidArgument, PermissionDenied, RdukitError, error_from_body
from rdukit_node.daemon.connections import NodeLedger, Response, lease_paths, ok
from rdukit_node.daemon.events import NodeEventKind
from rdukit_node.daemon.protocol import SndRequest
from rdukit_node.faults import query
from rdukit_node.faults.catalogue import catalogue_rows
from rdukit_node.faults.enums import Action, FaultSeverity
from rdukit_node.faults.machine import FaultMachine
from rdukit_node.faults.model import FaultOutcome, Injection, NoticeKind, Policy, TileOwner
from rdukit_node.faults.scenario import ScenarioStep, read_scenario
from rdukit_node.inventory import inventory_rows, tile_of_path
from rdukit_node.leases.allocator import LeaseId

W = TypeVar("W", bound=StrEnum)

logger = logging.getLogger(__name__)

#: Largest number of accounting rows in memory; the database has older ones.
_REMEMBERED_APPLICATIONS: Final = 1000
_LIMIT: Final = 1000
#: Kinds that snd.log has, too. Errors and resets are only in the database, because storms have too many.
_LOGGED: Final = frozenset({NoticeKind.FAULT, NoticeKind.CLEAR, NoticeKind.REPAIR})


class Administration:
    """Operations on the node itself; all users may read, changes need an administrator."""

    def __init__(self, daemon: NodeLedger, faults: FaultMachine) -> None:
        self.faults: Final = faults
        #: State of the fault database, from the shell.
        self.database: Final[dict[str, object]] = {
            "path": None, "is_writable": True, "reason": "", "pending": 0, "dropped": 0,
        }  # fmt: skip
        self._daemon = daemon
        self._applications: Final[deque[Mapping[str, object]]] = deque(maxlen=_REMEMBERED_APPLICATIONS)
        #: Steps of scenarios that are due later: (when, order, step), a heap.
        self._steps: list[tuple[float, int, ScenarioStep]] = []
        self._next_step = 0
        self.operations: Final[Mapping[str, Callable[[int, SndRequest, float], Response]]] = {
            "inventory": self._inventory,
            "op_state": self._op_state,
            "errors": self._errors,
            "faults": self._faults,
            "policies": self._policies,
            "hangs": self._hangs,
            "applications": self._list_applications,
            "catalogue": self._catalogue,
            "inject": self._inject,
            "scenario": self._scenario,
            "clear": self._clear,
            "repair": self._repair,
            "replace": self._replace,
            "reset_counts": self._reset_counts,
            "reset": self._reset,
            "set_policy": self._set_policy,
        }
        self._sync_health()

    def validate(self) -> None:
        """Raise ``AssertionError`` if the fault machine contradicts itself or the allocator."""
        self.faults.validate()
        assert self._daemon.allocator.out_of_service == self.faults.unusable_tiles(), (
            "the allocator knows what is broken"
        )

    def remember_application(self, row: Mapping[str, object]) -> None:
        """Keep an accounting row for ``applications``."""
        self._applications.append(row)

    def rdu_rows(self) -> list[dict[str, object]]:
        """Return operational states, with the tiles that are free counted by the machine."""
        return [state.as_json() for state in self.faults.op_states()]

    def rdu_temperatures(self, now: float) -> Mapping[int, float]:
        """Return flat RDU number → temperature in degrees Celsius that thermal errors report."""
        return self.faults.reported_celsius(_ns(now))

    def replays(self) -> Mapping[int, int]:
        """Return the numbers of corrected PCIe errors by flat RDU number."""
        return self.faults.pcie_replays()

    def tell(self, event: Injection, now: float) -> None:
        """Apply an event that no client injected, such as the daemon's own restart."""
        self._apply(self.faults.inject([event], self._owner_of, _ns(now)), now)

    # -- looking -----------------------------------------------------------------------------------------------------

    def inventory(self) -> list[dict[str, str | int]]:
        """List every component and its health, in the listing's order."""
        node, faults = self._daemon.allocator.node, self.faults
        return inventory_rows(node, self._daemon.name, faults.health_of, faults.presence_of, faults.replaced)

    def _inventory(self, number: int, message: SndRequest, now: float) -> Response:
        return ok(components=self.inventory())

    def _op_state(self, number: int, message: SndRequest, now: float) -> Response:
        return ok(rdus=self.rdu_rows())

    def _errors(self, number: int, message: SndRequest, now: float) -> Response:
        found = query.find_errors(self.faults.errors, **_filters(message))
        return ok(errors=[row.as_json() for row in found.rows], more=found.more)

    def _faults(self, number: int, message: SndRequest, now: float) -> Response:
        found = query.find_faults(
            self.faults.faults, **_filters(message), severity=message.find_text("severity"),
            cleared=message.flag("cleared"),
        )  # fmt: skip
        return ok(faults=[row.as_json() for row in found.rows], more=found.more)

    def _policies(self, number: int, message: SndRequest, now: float) -> Response:
        return ok(policies=[policy.as_json() for policy in self.faults.policies])

    def _hangs(self, number: int, message: SndRequest, now: float) -> Response:
        rows = query.find_hangs(self.faults.hangs, message.find_text("component"), message.number("limit", _LIMIT))
        return ok(hangs=[row.as_json() for row in rows])

    def _list_applications(self, number: int, message: SndRequest, now: float) -> Response:
        job = message.find_text("job")
        newest = [row for row in reversed(self._applications) if job is None or row["job"] == job]
        return ok(applications=newest[: message.number("limit", 100)])

    def _catalogue(self, number: int, message: SndRequest, now: float) -> Response:
        return ok(classes=catalogue_rows())

    # -- changing ----------------------------------------------------------------------------------------------------

    def _inject(self, number: int, message: SndRequest, now: float) -> Response:
        self._check_admin(number, "inject")
        events = [_injection(event) for event in message.mappings("events")]
        outcome = self.faults.inject(events, self._owner_of, _ns(now))
        self._apply(outcome, now)
        return _durable(errors=list(outcome.error_uuids), faults=list(outcome.fault_uuids))

    def _scenario(self, number: int, message: SndRequest, now: float) -> Response:
        self._check_admin(number, "scenario")
        steps = read_scenario(message.text("text"), self._daemon.allocator.node, message.find_number("seed"))
        for step in steps:
            heapq.heappush(self._steps, (now + step.at_s, self._next_step, step))
            self._next_step += 1
        return ok(steps=len(steps))

    def next_step_at(self) -> float | None:
        """Return when ``run_due_steps`` is due next."""
        due = [self._steps[0][0]] if self._steps else []
        if (reset_ns := self.faults.next_due_ns) is not None:
            due.append(reset_ns / 1e9)
        return min(due, default=None)

    def run_due_steps(self, now: float) -> None:
        """End due resets, and execute due steps of scenarios; a failing step is logged and the rest continues."""
        if (reset_ns := self.faults.next_due_ns) is not None and reset_ns <= _ns(now):
            self._apply(self.faults.advance(self._owner_of, _ns(now)), now)
        while self._steps and self._steps[0][0] <= now:
            _, _, step = heapq.heappop(self._steps)
            try:
                self._apply(step.run(self.faults, self._owner_of, _ns(now)), now)
            except RdukitError as error:
                logger.warning("event=scenario-step-failed step=%s reason=%s", step, error.message)

    def clock_stepped(self, seconds: float) -> None:
        """Shift due times by ``seconds``, by which the wall clock was set, so that remaining times are unchanged."""
        # an equal shift keeps the heap's order
        self._steps = [(when + seconds, order, step) for when, order, step in self._steps]
        self.faults.clock_stepped(_ns(seconds))

    def _clear(self, number: int, message: SndRequest, now: float) -> Response:
        by = self._check_admin(number, "clear")
        row, returned, outcome = self.faults.clear(message.text("fault"), by, self._owner_of, _ns(now))
        self._apply(outcome, now)
        return _durable(fault=row.as_json(), returned=returned)

    def _repair(self, number: int, message: SndRequest, now: float) -> Response:
        by = self._check_admin(number, "repair")
        outcome = self.faults.repair(message.text("component"), by, _ns(now))
        self._apply(outcome, now)
        return _durable(repaired=outcome.repaired, cleared=list(outcome.cleared))

    def _replace(self, number: int, message: SndRequest, now: float) -> Response:
        by = self._check_admin(number, "replace")
        serials, outcome = self.faults.replace(message.text("component"), by, _ns(now))
        self._apply(outcome, now)
        for path, serial in serials.items():
            self._daemon.events.record_component(NodeEventKind.REPLACE, now, path, f"new part {serial}, by {by}")
        return _durable(serials=serials, repaired=outcome.repaired, cleared=list(outcome.cleared))

    def _reset_counts(self, number: int, message: SndRequest, now: float) -> Response:
        self._check_admin(number, "reset_counts")
        return _durable(rows=self.faults.reset_counts(message.text("component")))

    def _reset(self, number: int, message: SndRequest, now: float) -> Response:
        self._check_admin(number, "reset")
        hang, outcome = self.faults.reset(message.text("component"), self._owner_of, _ns(now))
        self._apply(outcome, now)
        return _durable(hang=hang.as_json())

    def _set_policy(self, number: int, message: SndRequest, now: float) -> Response:
        self._check_admin(number, "set_policy")
        policy = self.faults.set_policy(
            Policy(
                error_type=message.text("error_type"),
                fault_type=message.text("fault_type"),
                count=message.number("count"),
                window_s=int(message.real("window_s", 0)),
                action=_word("action", Action, message.text("action")),
                severity=_word("severity", FaultSeverity, message.text("severity")),
            )
        )
        self._daemon.events.record_component(NodeEventKind.POLICY, now, None, f"{policy.error_type}: {policy.count}")
        return _durable(policy=policy.as_json())

    def _check_admin(self, number: int, operation: str) -> str:
        """Return the caller's name as the database records it."""
        connection = self._daemon.connections[number]
        if not connection.is_admin:
            raise PermissionDenied(
                f"{operation} changes the node: run as root or as the daemon's user, or authorize with the token in "
                "the file admin.token"
            )
        return connection.peer.user or "token"

    # -- consequences ------------------------------------------------------------------------------------------------

    def _apply(self, outcome: FaultOutcome, now: float) -> None:
        """Apply an outcome of the fault machine: events, allocation, running applications."""
        daemon = self._daemon
        for notice in outcome.notices:
            daemon.events.record_component(
                NodeEventKind(notice.kind), now, notice.component, notice.reason, notice.error_uuid, notice.fault_uuid
            )
            if notice.kind in _LOGGED:
                level = logging.ERROR if notice.kind is NoticeKind.FAULT else logging.INFO
                logger.log(
                    level, "event=%s component=%s fault=%s: %s",
                    notice.kind, notice.component, notice.fault_uuid, notice.reason,
                )  # fmt: skip
        self._sync_health()
        for interrupt in outcome.interrupts:
            lease_id = LeaseId(interrupt.owner.lease)
            lease = daemon.allocator.leases.get(lease_id)
            if lease is None or daemon.leases[lease_id].failure is not None:
                continue
            failure = error_from_body({"error": interrupt.as_json()}, HwException)
            daemon.leases[lease_id].failure = failure
            fault = None if interrupt.fault is None else interrupt.fault.fault_uuid
            daemon.events.record_interrupt(
                now, lease, lease_paths(daemon.allocator.node, lease), interrupt.component, interrupt.error.err_uuid,
                fault, interrupt.message,
            )  # fmt: skip
            logger.error("event=interrupt lease=%s component=%s", lease_id, interrupt.component)
            for page in daemon.pages_of(lease_id):
                page.interrupt()

    def _sync_health(self) -> None:
        node = self._daemon.allocator.node
        retired: Sequence[int] = [self.faults.retired_memory(rdu) for rdu in range(node.rdus)]
        self._daemon.allocator.set_health(self.faults.unusable_tiles(), retired)

    def _owner_of(self, path: str) -> TileOwner | None:
        """Return the holder of the tile ``path``."""
        allocator = self._daemon.allocator
        holder = allocator.tile_holders[tile_of_path(allocator.node, path).index]
        if holder is None:
            return None
        request = allocator.leases[holder].request
        return TileOwner(request.application, request.tenant, request.job, holder, self._daemon.pid_of(holder))


def _word(name: str, kind: type[W], text: str) -> W:
    try:
        return kind(text)
    except ValueError as cause:
        raise InvalidArgument(f"{name} is {text!r}; expected {', '.join(kind)}") from cause


def _injection(event: Mapping[str, object]) -> Injection:
    data, count, seed, component = event.get("data"), event.get("count"), event.get("seed"), event.get("component")
    return Injection(
        class_name=str(event["class"]),
        component=None if component is None else str(component),
        count=count if isinstance(count, int) else 1,
        seed=seed if isinstance(seed, int) else None,
        data=data if isinstance(data, dict) else {},
    )


def _filters(message: SndRequest) -> dict[str, object]:
    names = ("component", "type", "since", "until", "fault", "limit", "after")
    return {name: message.arguments[name] for name in names if name in message.arguments}


def _durable(**more: object) -> Response:
    return Response({"ok": True, **more}, is_durable=True)


def _ns(now: float) -> int:
    return int(now * 1e9)
