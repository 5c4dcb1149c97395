"""Background writer of refusals, of views by administrators, and of uses of tokens. Many equal events become one row
with a count.

It is a thread of the gateway or of a worker, and writes a batch per transaction.
"""

import ipaddress
import logging
import threading
from dataclasses import dataclass, replace
from typing import Final

from sqlalchemy.exc import SQLAlchemyError

from rdukit.interfaces import Clock
from rdukit_platform.audit.service import AuditRecord, note_uses, record
from rdukit_platform.db.engine import Database

logger = logging.getLogger(__name__)

#: Seconds of events that one transaction writes.
BATCH_S: Final = 0.25
#: Seconds between checks for ended windows.
TICK_S: Final = 5.0
#: Resolution in seconds of a token's last use.
USE_S: Final = 60.0
#: Largest number of rows that wait for an unreachable database; further ones are lost, which is logged.
MAX_WAITING: Final = 5000


class AuditWriter:
    """Collects events at any rate from any thread; the writing thread starts with the first one."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database, self._clock = database, clock
        self._flood = Flood()
        #: Guards the attributes below, and ``_flood``.
        self._lock = threading.Lock()
        #: Waiting entries, in order.
        self._waiting: list[AuditRecord] = []
        self._lost = 0
        #: Last recorded use of each token, and the uses not written yet.
        self._used: dict[str, float] = {}
        self._unwritten: set[str] = set()
        self._thread: threading.Thread | None = None
        self._is_closed = False
        self._has_work = threading.Event()
        self._stop = threading.Event()
        #: Only one thread writes at a time, so that everything is in the database when a flush returns.
        self._writing = threading.Lock()

    def note(self, entry: AuditRecord) -> None:
        """Queue a refusal, or a view of another tenant's data. Does not access the database."""
        with self._lock:
            row = self._flood.note(entry)
            if row is not None:
                self._keep([row])
            self._begin()
        self._has_work.set()

    def used(self, token_id: str) -> None:
        """Queue the use of a token, at most once per ``USE_S``. Does not access the database."""
        now = self._clock.now()
        # Without the lock: most requests return here, and concurrent ones write the same value.
        if now - self._used.get(token_id, float("-inf")) < USE_S:
            return
        with self._lock:
            if len(self._used) > MAX_WAITING:
                self._used = {token: at for token, at in self._used.items() if now - at < USE_S}
            self._used[token_id] = now
            self._unwritten.add(token_id)
            self._begin()
        self._has_work.set()

    def flush(self) -> None:
        """Write all queued entries now; after a database error they stay queued."""
        self._write(is_end=False)

    def close(self) -> None:
        """Write everything, also counts of open windows."""
        with self._lock:
            self._is_closed = True
            thread = self._thread
        self._stop.set()
        self._has_work.set()
        if thread is not None:
            thread.join()
        self._write(is_end=True)

    def _run(self) -> None:
        while not self._stop.is_set():
            with self._lock:
                is_due_later = self._flood.is_counting or bool(self._waiting)
            self._has_work.wait(TICK_S if is_due_later else None)
            self._has_work.clear()
            self._stop.wait(BATCH_S)
            self._write(is_end=False)

    def _write(self, *, is_end: bool) -> None:
        with self._writing:
            with self._lock:
                self._keep(self._flood.due(self._clock.now(), is_end=is_end))
                rows, self._waiting = self._waiting, []
                lost, self._lost = self._lost, 0
                used = {token: self._used[token] for token in self._unwritten if token in self._used}
                self._unwritten = set()
            if lost:
                logger.error("entries of the audit log were lost: the database did not answer count=%d", lost)
            if not rows and not used:
                return
            try:
                with self._database.write() as session:
                    for row in rows:
                        record(session, row)
                    note_uses(session, used)
            except SQLAlchemyError as error:
                logger.warning("audit log not written rows=%d error=%s", len(rows), error)
                with self._lock:
                    later, self._waiting = self._waiting, []
                    self._keep(rows + later)

    def _begin(self) -> None:
        if self._thread is None and not self._is_closed:
            self._thread = threading.Thread(target=self._run, name="audit", daemon=True)
            self._thread.start()

    def _keep(self, rows: list[AuditRecord]) -> None:
        room = MAX_WAITING - len(self._waiting)
        self._waiting += rows[:room]
        self._lost += max(len(rows) - room, 0)


WINDOW_S: Final = 60.0
#: Rows per minute for one address, actor and reason; further events become one row with a count.
ROWS_OF_ONE: Final = 10
#: Rows per minute in total; further events are only counted.
ROWS_OF_ALL: Final = 500
#: Largest number of addresses distinguished at once; the others count as one.
SOURCES: Final = 500
#: Address that stands for further sources.
MANY: Final = "many"


@dataclass(slots=True)
class _Window:
    """Refusals of one source since ``began``."""

    began: float
    written: int = 0
    #: Last of the counted events, with their number; ``None``: there are none.
    counted: AuditRecord | None = None


class Flood:
    """Decides which refusals are rows at once, and which are counted."""

    def __init__(self) -> None:
        #: Windows of the last ``WINDOW_S``, at most ``SOURCES`` and one per reason.
        self._windows: dict[tuple[str, str, str], _Window] = {}
        self._all = _Window(float("-inf"))

    @property
    def is_counting(self) -> bool:
        """Return whether ``due`` will have rows later."""
        return any(window.counted for window in self._windows.values())

    def note(self, entry: AuditRecord) -> AuditRecord | None:
        """Return ``entry`` if it becomes a row now; ``None``: it is only counted."""
        if entry.at - self._all.began >= WINDOW_S:
            self._all = _Window(entry.at)
        key = (network(entry.address), entry.actor, entry.reason)
        if key not in self._windows and len(self._windows) >= SOURCES:
            entry = replace(entry, address=MANY, target="", actor="")
            key = (MANY, "", entry.reason)
        window = self._windows.setdefault(key, _Window(entry.at))
        if window.written < ROWS_OF_ONE and self._all.written < ROWS_OF_ALL:
            window.written += 1
            self._all.written += 1
            return entry
        before = window.counted.count if window.counted else 0
        window.counted = replace(entry, count=before + entry.count)
        return None

    def due(self, now: float, *, is_end: bool = False) -> list[AuditRecord]:
        """Return the counted rows of ended windows; at shutdown those of all windows."""
        ended = [key for key, window in self._windows.items() if is_end or now - window.began >= WINDOW_S]
        return [row for key in ended if (row := self._windows.pop(key).counted) is not None]


def network(address: str) -> str:
    """Return the source of an address: for IPv6 its 64-bit network, because one caller may own it all."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped is None:
        return str(ipaddress.ip_network((parsed, 64), strict=False).network_address)
    return address
