"""What the fault machine keeps of one error while it counts: a row that can be added to in constant time."""

from collections.abc import Mapping

from rdukit_node.faults.model import ErrorRow, Owner, Policy
from rdukit_node.faults.register import FaultClass
from rdukit_node.faults.window import Window

#: Seconds that errors without a policy are remembered one by one.
_DEFAULT_WINDOW_S = 3600


class ErrorRecord:
    """The row of one error, and its window."""

    __slots__ = ("_row", "component", "count", "data", "entry", "fault", "first", "last", "owner", "uuid", "window")

    def __init__(
        self, uuid: str, entry: FaultClass, component: str, data: Mapping[str, object], now_ns: int, window: Window
    ) -> None:
        self.uuid = uuid
        self.entry = entry
        self.component = component
        self.data = data
        self.count = 0
        self.first = now_ns
        self.last = now_ns
        #: Whoever was hit last.
        self.owner: Owner | None = None
        #: The fault that it was diagnosed into.
        self.fault: str | None = None
        self.window = window
        self._row: ErrorRow | None = None

    def add(self, number: int, owner: Owner | None, now_ns: int) -> int:
        """Count ``number`` occurrences; how many the policy's window has now."""
        self.count += number
        if now_ns > self.last:
            self.last = now_ns
        if owner is not None:
            self.owner = owner
        self._row = None
        return self.window.add(number, now_ns)

    def diagnose(self, fault_uuid: str) -> None:
        """It became part of a fault."""
        self.fault = fault_uuid
        self._row = None

    def row(self) -> ErrorRow:
        """As it is now."""
        if self._row is None:
            application, tenant, job, lease, pid = owner_fields(self.owner)
            self._row = ErrorRow(
                self.uuid, self.entry.error_type, self.entry.error_desc, self.data, self.count, self.first, self.last,
                self.component, self.fault, application, tenant, job, self.window.coarse(), lease, pid,
            )  # fmt: skip
        return self._row


def owner_fields(owner: Owner | None) -> tuple[str | None, str | None, str | None, str | None, int | None]:
    """Application, tenant, job, lease and process, as rows have them."""
    if owner is None:
        return None, None, None, None, None
    return owner.application, owner.tenant, owner.job, owner.lease or None, owner.pid


def window_of(policy: Policy | None, recent: tuple[tuple[int, int], ...] = ()) -> Window:
    """A window as long as the policy's."""
    return Window((_DEFAULT_WINDOW_S if policy is None else policy.window_s) * 10**9, recent)


def record_of_row(row: ErrorRow, entry: FaultClass, policy: Policy | None) -> ErrorRecord:
    """The record that ``row`` was written from."""
    record = ErrorRecord(
        row.err_uuid, entry, row.comp_name, row.err_data, row.orig_timestamp, window_of(policy, row.recent)
    )
    record.count, record.last, record.fault = row.err_count, row.last_timestamp, row.fault_uuid
    if row.application is not None:
        record.owner = Owner(row.application, row.tenant, row.job, row.lease or "", row.pid)
    return record
