"""What one call of the fault machine brought about, while it gathers."""

from typing import Final

from rdukit_node.faults.model import FaultRow, Interrupt, Notice, NoticeKind, Outcome, Owner
from rdukit_node.faults.records import ErrorRecord


class Gathering:
    """Grows into an ``Outcome``."""

    def __init__(self) -> None:
        #: In the order in which they were made or counted up; each once.
        self._errors: Final[dict[str, None]] = {}
        self._faults: Final[dict[str, None]] = {}
        self._notices: Final[list[Notice]] = []
        #: By lease: whoever was hit, with component, exception code and error of the first time.
        self._hits: Final[dict[str, tuple[Owner, str, str, ErrorRecord]]] = {}
        self._cleared: Final[list[str]] = []
        self.repaired = 0

    def error(self, record: ErrorRecord, is_new: bool, owner: Owner | None) -> None:
        """An error row was made or counted up."""
        self._errors[record.uuid] = None
        if record.fault is not None:
            self._faults[record.fault] = None
        if is_new:
            kind, entry = NoticeKind.ERROR, record.entry
            self._notices.append(
                Notice(kind, record.component, record.uuid, None, f"{entry.error_type}: {entry.error_desc}", owner)
            )

    def fault(self, row: FaultRow) -> None:
        """A fault was diagnosed."""
        self._faults[row.fault_uuid] = None
        reason = f"{row.severity} {row.fault_type}: {row.fault_desc}; action: {row.action}"
        self._notices.append(Notice(NoticeKind.FAULT, row.comp_name, row.err_uuid, row.fault_uuid, reason))

    def cleared(self, row: FaultRow, kind: NoticeKind, by: str) -> None:
        """A fault is over."""
        self._cleared.append(row.fault_uuid)
        self._notices.append(Notice(kind, row.comp_name, row.err_uuid, row.fault_uuid, f"{row.fault_type} by {by}"))

    def notice(self, kind: NoticeKind, component: str, reason: str, error_uuid: str | None = None) -> None:
        """Something else happened."""
        self._notices.append(Notice(kind, component, error_uuid, None, reason))

    def hit(self, owner: Owner, component: str, code: str, record: ErrorRecord) -> None:
        """A lease's program has to end; what hit it first counts."""
        self._hits.setdefault(owner.lease, (owner, component, code, record))

    def outcome(self, faults: dict[str, FaultRow]) -> Outcome:
        """All of it; ``faults`` has the rows that errors were diagnosed into."""
        return Outcome(
            tuple(self._errors),
            tuple(self._faults),
            tuple(_interrupt(*hit, faults) for hit in self._hits.values()),
            tuple(self._notices),
            self.repaired,
            tuple(self._cleared),
        )


def _interrupt(owner: Owner, component: str, code: str, record: ErrorRecord, faults: dict[str, FaultRow]) -> Interrupt:
    fault = None if record.fault is None else faults.get(record.fault)
    row = record.row()
    known_as = f"error {row.err_uuid}" + ("" if fault is None else f", fault {fault.fault_uuid}")
    step = "start the program again" if fault is None else fault.recovery_act
    message = f"{record.entry.error_desc} ({record.component}) under {owner.label}; {known_as}. Next: {step}"
    return Interrupt(component, code, row, fault, message, owner)
