"""The rows of the fault database, and inputs and outputs of the fault machine.

Times are whole nanoseconds since the epoch, UTC. An *error* is a symptom, a *fault* a diagnosis about a component.

Source: runtime reference 4.2 (fields of errors, faults and policies), 1.4 (hang-recovery log, operational state); the
words of severities, states and actions are ours.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from rdukit_node.faults.enums import Action, FaultSeverity, FaultState, HangEvent, HangOutcome, RduState
from rdukit_node.maintenance.model import NO_CHANGES, Cordon, MaintenanceChanges, MaintenanceWindow


@dataclass(frozen=True, slots=True)
class TileOwner:
    """The lease that had a component when something happened to it."""

    application: str
    tenant: str | None
    job: str | None
    lease: str
    #: Process id of the lease's acquirer, if visible.
    pid: int | None = None

    @property
    def label(self) -> str:
        """The application, distinguished from others of its name."""
        return f"{self.application} ({self.lease}{'' if self.pid is None else f', process {self.pid}'})"


#: Function that returns the present holder of the tile with a path.
FindOwner = Callable[[str], TileOwner | None]


def nobody(path: str) -> TileOwner | None:
    """Return the owner of everything on an idle node."""
    return None


@dataclass(frozen=True, slots=True)
class Injection:
    """A hardware event to emulate. ``component`` may be above the class's kind, or ``None``; the seed then chooses one.

    ``data`` is added to the error's data. The machine reads three keys: ``persists`` (bool: the cause stays until
    ``repair``), ``resets_that_fail`` (number of resets that do not cure the cause, or null for all) and ``lease`` (the
    lease whose memory an uncorrectable error hits).
    """

    class_name: str
    component: str | None = None
    count: int = 1
    seed: int | None = None
    data: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ErrorRow:
    """Repeats of one error on one component, from the first until the fault diagnosed from them is cleared."""

    err_uuid: str
    err_type: str
    err_type_desc: str
    #: Data of the first occurrence.
    err_data: Mapping[str, object]
    err_count: int
    orig_timestamp: int
    last_timestamp: int
    comp_name: str
    fault_uuid: str | None
    #: Last affected holder, if any.
    application: str | None
    tenant: str | None
    job: str | None
    #: Occurrences that the policy still counts, as (time, number), oldest first; they are not shown.
    recent: tuple[tuple[int, int], ...] = ()
    lease: str | None = None
    pid: int | None = None

    def as_json(self) -> dict[str, object]:
        """Return the contract's fields."""
        return {
            "err_uuid": self.err_uuid, "err_type": self.err_type, "err_type_desc": self.err_type_desc,
            "err_data": dict(self.err_data), "err_count": self.err_count, "orig_timestamp": self.orig_timestamp,
            "last_timestamp": self.last_timestamp, "comp_name": self.comp_name, "fault_uuid": self.fault_uuid,
            "application": self.application, "tenant": self.tenant, "job": self.job, "lease": self.lease,
            "pid": self.pid,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class FaultRow:
    """A diagnosis. It is over when somebody cleared it or repaired its component."""

    fault_uuid: str
    fault_type: str
    fault_state: FaultState
    severity: FaultSeverity
    comp_name: str
    comp_ser_num: str
    fault_desc: str
    recovery_act: str
    #: Action that the node took.
    action: Action
    err_uuid: str
    timestamp: int
    cleared_timestamp: int | None
    cleared_by: str | None
    #: Components to look at, the likeliest first; for faults of a path, else empty.
    suspects: tuple[str, ...]
    application: str | None
    tenant: str | None
    job: str | None
    lease: str | None = None
    pid: int | None = None

    @property
    def is_active(self) -> bool:
        return self.fault_state is FaultState.ACTIVE

    def as_json(self) -> dict[str, object]:
        """Return the contract's fields."""
        return {
            "fault_uuid": self.fault_uuid, "fault_type": self.fault_type, "fault_state": str(self.fault_state),
            "severity": str(self.severity), "comp_name": self.comp_name, "comp_ser_num": self.comp_ser_num,
            "fault_desc": self.fault_desc, "recovery_act": self.recovery_act, "action": str(self.action),
            "err_uuid": self.err_uuid, "timestamp": self.timestamp, "cleared_timestamp": self.cleared_timestamp,
            "cleared_by": self.cleared_by, "suspects": list(self.suspects), "application": self.application,
            "tenant": self.tenant, "job": self.job, "lease": self.lease, "pid": self.pid,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Policy:
    """A diagnosis rule: ``count`` errors of a type on a component in ``window_s`` make a fault, with its action."""

    error_type: str
    fault_type: str
    count: int
    window_s: int
    action: Action
    severity: FaultSeverity
    fault_desc: str = ""
    fault_detail_desc: str = ""
    recovery_act: str = ""

    def as_json(self) -> dict[str, object]:
        """Return the contract's fields."""
        return {
            "error_type": self.error_type, "fault_type": self.fault_type, "count": self.count,
            "window_s": self.window_s, "action": str(self.action), "severity": str(self.severity),
            "fault_desc": self.fault_desc, "fault_detail_desc": self.fault_detail_desc,
            "recovery_act": self.recovery_act,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class HangRow:
    """A recovery from a hang. ``number`` counts them on the node and is not shown."""

    number: int
    rdu: int
    comp_name: str
    timestamp: int
    event: HangEvent
    outcome: HangOutcome

    def as_json(self) -> dict[str, object]:
        """Return the contract's fields."""
        return {
            "rdu": self.rdu, "comp_name": self.comp_name, "timestamp": self.timestamp, "event": str(self.event),
            "outcome": str(self.outcome),
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class OpState:
    """The operational state of an RDU. ``perfect``: functional with every tile."""

    rdu: int
    comp_name: str
    state: RduState
    reason: str
    since: int
    available_tiles: int
    perfect: bool

    def as_json(self) -> dict[str, object]:
        """Return the contract's fields."""
        return {
            "rdu": self.rdu, "comp_name": self.comp_name, "state": str(self.state), "reason": self.reason,
            "since": self.since, "available_tiles": self.available_tiles, "perfect": self.perfect,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Condition:
    """A defect of the emulated hardware, diagnosed or not."""

    component: str
    class_name: str
    since: int
    #: Number of resets until it is cured; ``None``: only a repair cures it.
    resets_that_fail: int | None
    data: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Interrupt:
    """A lease whose program must end with an exception. ``code`` is that of its class in ``rdukit.errors``."""

    component: str
    code: str
    error: ErrorRow
    fault: FaultRow | None
    message: str
    owner: TileOwner

    def as_json(self) -> dict[str, object]:
        """Body of the error, as the operation ``interrupt`` answers it."""
        fault = self.fault
        return {
            "code": self.code,
            "message": self.message,
            "detail": {
                "component": self.component,
                "error_uuid": self.error.err_uuid,
                "fault_uuid": None if fault is None else fault.fault_uuid,
                "recovery": "start the program again" if fault is None else fault.recovery_act,
                "action": str(Action.NONE if fault is None else fault.action),
            },
        }


class NoticeKind(StrEnum):
    """Kinds of event that the fault machine reports; they are also kinds of the node's event log."""

    ERROR = "error"
    FAULT = "fault"
    CLEAR = "clear"
    REPAIR = "repair"
    RESET = "reset"
    STATE = "state"


@dataclass(frozen=True, slots=True)
class Notice:
    """An entry for the node's event log."""

    kind: NoticeKind
    component: str
    error_uuid: str | None
    fault_uuid: str | None
    reason: str
    owner: TileOwner | None = None


@dataclass(frozen=True, slots=True)
class FaultOutcome:
    """Changes of one call. ``error_uuids`` and ``fault_uuids``: rows added or counted up, in order, each once."""

    error_uuids: tuple[str, ...] = ()
    fault_uuids: tuple[str, ...] = ()
    #: At most one for each lease, the first that hit it.
    interrupts: tuple[Interrupt, ...] = ()
    notices: tuple[Notice, ...] = ()
    #: Conditions that ended, and cleared faults.
    repaired: int = 0
    cleared: tuple[str, ...] = ()


def join_outcomes(outcomes: Iterable[FaultOutcome]) -> FaultOutcome:
    """Join several consecutive outcomes into one."""
    found = list(outcomes)
    interrupts: dict[str, Interrupt] = {}
    for interrupt in (interrupt for outcome in found for interrupt in outcome.interrupts):
        interrupts.setdefault(interrupt.owner.lease, interrupt)
    return FaultOutcome(
        tuple(dict.fromkeys(uuid for outcome in found for uuid in outcome.error_uuids)),
        tuple(dict.fromkeys(uuid for outcome in found for uuid in outcome.fault_uuids)),
        tuple(interrupts.values()),
        tuple(notice for outcome in found for notice in outcome.notices),
        sum(outcome.repaired for outcome in found),
        tuple(uuid for outcome in found for uuid in outcome.cleared),
    )


@dataclass(frozen=True, slots=True)
class ChangedRows:
    """Rows to write since the last ``take_changes``: each in its newest form."""

    errors: tuple[ErrorRow, ...] = ()
    faults: tuple[FaultRow, ...] = ()
    hangs: tuple[HangRow, ...] = ()
    op_states: tuple[OpState, ...] = ()
    policies: tuple[Policy, ...] = ()
    conditions: tuple[Condition, ...] = ()
    #: (component, class name) of conditions that are gone.
    conditions_gone: tuple[tuple[str, str], ...] = ()
    #: Path, and the part's number of replacements.
    replaced: tuple[tuple[str, int], ...] = ()
    #: Parts that administrators keep from being allocated; the fault machine does not set them.
    maintenance: MaintenanceChanges = NO_CHANGES

    def __bool__(self) -> bool:
        return bool(
            self.errors or self.faults or self.hangs or self.op_states or self.policies or self.conditions
            or self.conditions_gone or self.replaced or self.maintenance
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class FaultSnapshot:
    """State from which a fault machine, and the board of maintenance, start again; rows are oldest first."""

    errors: tuple[ErrorRow, ...] = ()
    faults: tuple[FaultRow, ...] = ()
    hangs: tuple[HangRow, ...] = ()
    op_states: tuple[OpState, ...] = ()
    policies: tuple[Policy, ...] = ()
    conditions: tuple[Condition, ...] = ()
    cordons: tuple[Cordon, ...] = ()
    windows: tuple[MaintenanceWindow, ...] = ()
    #: Path, and the part's number of replacements.
    replaced: tuple[tuple[str, int], ...] = ()
