"""Error records while they count: a row that grows in constant time, over a sliding window in bounded memory."""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final

from rdukit_node.faults.model import ErrorRow, Policy, TileOwner
from rdukit_node.faults.register import FaultClass

#: Occurrences closer together than this part of the window are counted as one entry, at the first one's time.
_GRAINS: Final = 1000
#: Maximum entries of ``coarse``.
_COARSE: Final = 32


class SlidingWindow:
    """Occurrences of the last ``span_ns`` nanoseconds; each is forgotten up to a thousandth of the span early."""

    __slots__ = ("_entries", "_grain_ns", "_span_ns", "total")

    def __init__(self, span_ns: int, entries: Sequence[tuple[int, int]] = ()) -> None:
        self._span_ns = span_ns
        self._grain_ns = span_ns // _GRAINS
        #: (time, number) by rising time, further apart than the grain.
        self._entries: deque[list[int]] = deque([time, number] for time, number in entries)
        #: Sum of the numbers.
        self.total = sum(number for _, number in entries)

    def add(self, number: int, now_ns: int) -> int:
        """Count ``number`` more occurrences; return those in the window. A clock that goes back stands still."""
        entries = self._entries
        if entries:
            last = entries[-1]
            now_ns = max(now_ns, last[0])
            oldest = now_ns - self._span_ns
            while entries and entries[0][0] <= oldest:
                self.total -= entries.popleft()[1]
            if entries and now_ns - last[0] < self._grain_ns:
                last[1] += number
            else:
                entries.append([now_ns, number])
        else:
            entries.append([now_ns, number])
        self.total += number
        return self.total

    def coarse(self) -> tuple[tuple[int, int], ...]:
        """Return the window as few entries, for the database; each sums successive ones at the first one's time."""
        entries = list(self._entries)
        step = -(-len(entries) // _COARSE) or 1
        return tuple(
            (entries[start][0], sum(number for _, number in entries[start : start + step]))
            for start in range(0, len(entries), step)
        )


#: Seconds that errors without a policy are remembered one by one.
_DEFAULT_WINDOW_S = 3600


class ErrorRecord:
    """The row of one error, and its window."""

    __slots__ = ("_row", "component", "count", "data", "entry", "fault", "first", "last", "owner", "uuid", "window")

    def __init__(
        self,
        uuid: str,
        entry: FaultClass,
        component: str,
        data: Mapping[str, object],
        now_ns: int,
        window: SlidingWindow,
    ) -> None:
        self.uuid = uuid
        self.entry = entry
        self.component = component
        self.data = data
        self.count = 0
        self.first = now_ns
        self.last = now_ns
        #: Last affected holder.
        self.owner: TileOwner | None = None
        #: Fault that includes it.
        self.fault: str | None = None
        self.window = window
        self._row: ErrorRow | None = None

    def add(self, number: int, owner: TileOwner | None, now_ns: int) -> int:
        """Count ``number`` occurrences; return the number in the policy's window."""
        self.count += number
        if now_ns > self.last:
            self.last = now_ns
        if owner is not None:
            self.owner = owner
        self._row = None
        return self.window.add(number, now_ns)

    def diagnose(self, fault_uuid: str) -> None:
        """Make the error part of a fault."""
        self.fault = fault_uuid
        self._row = None

    def row(self) -> ErrorRow:
        """Return the present row."""
        if self._row is None:
            application, tenant, job, lease, pid = owner_fields(self.owner)
            self._row = ErrorRow(
                self.uuid, self.entry.error_type, self.entry.error_desc, self.data, self.count, self.first, self.last,
                self.component, self.fault, application, tenant, job, self.window.coarse(), lease, pid,
            )  # fmt: skip
        return self._row


def owner_fields(owner: TileOwner | None) -> tuple[str | None, str | None, str | None, str | None, int | None]:
    """Return application, tenant, job, lease and process, as rows have them."""
    if owner is None:
        return None, None, None, None, None
    return owner.application, owner.tenant, owner.job, owner.lease or None, owner.pid


def window_of(policy: Policy | None, recent: tuple[tuple[int, int], ...] = ()) -> SlidingWindow:
    """Return a window as long as the policy's."""
    return SlidingWindow((_DEFAULT_WINDOW_S if policy is None else policy.window_s) * 10**9, recent)


def record_of_row(row: ErrorRow, entry: FaultClass, policy: Policy | None) -> ErrorRecord:
    """Return the record that ``row`` was written from."""
    record = ErrorRecord(
        row.err_uuid, entry, row.comp_name, row.err_data, row.orig_timestamp, window_of(policy, row.recent)
    )
    record.count, record.last, record.fault = row.err_count, row.last_timestamp, row.fault_uuid
    if row.application is not None:
        record.owner = TileOwner(row.application, row.tenant, row.job, row.lease or "", row.pid)
    return record
