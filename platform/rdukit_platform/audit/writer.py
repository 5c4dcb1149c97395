"""Writer of what no request waits for: refusals and looks, of which many alike are one row with a count, and uses of
tokens.

A thread of the gateway or of a worker, a transaction a batch.
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

#: What comes within so many seconds is one transaction.
BATCH_S: Final = 0.25
#: How often it looks for windows that have ended.
TICK_S: Final = 5.0
#: How exactly it is known when a token was last used.
USE_S: Final = 60.0
#: Rows that wait for a database that does not answer; the later ones are lost, and that is logged.
MAX_WAITING: Final = 5000


class AuditWriter:
    """Takes refusals and looks at any rate from any thread; the thread that writes them begins with the first one."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database, self._clock = database, clock
        self._flood = Flood()
        #: Guards all below, and ``_flood``.
        self._lock = threading.Lock()
        #: Rows to be, in order.
        self._waiting: list[AuditRecord] = []
        self._lost = 0
        #: Token to when its use was last noted; and those of them that are not written yet.
        self._used: dict[str, float] = {}
        self._unwritten: set[str] = set()
        self._thread: threading.Thread | None = None
        self._is_closed = False
        self._has_work = threading.Event()
        self._stop = threading.Event()
        #: One writes at a time, so that a flush that returns has it all in the database.
        self._writing = threading.Lock()

    def note(self, entry: AuditRecord) -> None:
        """Record a refusal, or a look at what is another tenant's, soon. Touches no database."""
        with self._lock:
            row = self._flood.note(entry)
            if row is not None:
                self._keep([row])
            self._begin()
        self._has_work.set()

    def used(self, token_id: str) -> None:
        """Note that a token was used; it is written at most once in ``USE_S``. Touches no database."""
        now = self._clock.now()
        # Without the lock: most requests end here, and two that do not write the same.
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
        """Write now what is to be written; after an error of the database it is tried again later."""
        self._write(is_end=False)

    def close(self) -> None:
        """Write all there is, counts of windows that have not ended too."""
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
#: Rows a minute for one address, actor and reason; what comes beyond is one more row with a count.
ROWS_OF_ONE: Final = 10
#: Rows a minute in all; beyond, each is counted only.
ROWS_OF_ALL: Final = 500
#: Addresses that are told apart at once; beyond, the rest are one.
SOURCES: Final = 500
#: The address of those that are not told apart.
MANY: Final = "many"


@dataclass(slots=True)
class _Window:
    """Refusals of one source since ``began``."""

    began: float
    written: int = 0
    #: The last of those that were counted only, with their number; ``None``: there is none.
    counted: AuditRecord | None = None


class Flood:
    """Decides which refusals are rows at once, and which are counted."""

    def __init__(self) -> None:
        #: Those of the last ``WINDOW_S``, at most ``SOURCES`` and one for each reason.
        self._windows: dict[tuple[str, str, str], _Window] = {}
        self._all = _Window(float("-inf"))

    @property
    def is_counting(self) -> bool:
        """Return whether ``due`` will have rows later."""
        return any(window.counted for window in self._windows.values())

    def note(self, entry: AuditRecord) -> AuditRecord | None:
        """``entry`` if it is to be a row now; ``None``: it was counted."""
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
        """Return the rows of windows that have ended, with how many each stands for; at the end those of all."""
        ended = [key for key, window in self._windows.items() if is_end or now - window.began >= WINDOW_S]
        return [row for key in ended if (row := self._windows.pop(key).counted) is not None]


def network(address: str) -> str:
    """Return what counts as one address: for IPv6 the network of 64 bits, which one caller has as a whole."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped is None:
        return str(ipaddress.ip_network((parsed, 64), strict=False).network_address)
    return address
