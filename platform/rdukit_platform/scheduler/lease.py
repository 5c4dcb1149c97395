"""Lease of the scheduler: one of several processes on a database decides, and the others stand by.

The lease is one row. Its token grows with each holder. A holder's transaction first checks that the row still has its
token, so a process that was frozen and replaced writes nothing. Standby processes measure the holder's silence by their
own monotonic clocks, so clocks of two machines are never compared. A holder whose process is seen to be gone is
replaced at once.
"""

import logging
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from sqlalchemy import select, text, update
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.orm import Session

from rdukit.errors import LeaseLost
from rdukit.interfaces import Clock
from rdukit.system.process import own_place, read_facts
from rdukit_platform.db.engine import Database
from rdukit_platform.db.models import SchedulerLeaseRow
from rdukit_platform.jobs.changes import count_changed
from rdukit_platform.scheduler.watches import SilenceWatch
from rdukit_platform.services import beat_service, end_service

logger = logging.getLogger(__name__)

#: Name of the table's only row.
NAME: Final = "scheduler"
#: The lease is renewed after its length divided by this.
_PART: Final = 4


@dataclass(frozen=True, slots=True)
class LeaseHolder:
    """Holder of the lease, from its row: the service, and the place of its process."""

    service: str
    place: str
    token: int
    beats: int

    @property
    def pid(self) -> int:
        """Return the process id, as seen in the holder's place."""
        return int(self.service.rpartition(":")[2])


def may_take(holder: LeaseHolder, place: str, pid: int, is_silent: bool, is_running: Callable[[int], bool]) -> bool:
    """Return whether a process may take the lease from its holder (pure, except for ``is_running``).

    ``place`` and ``pid`` are the caller's. A process in another place can only be judged by its silence.
    """
    if is_silent or not holder.service:
        return True
    return holder.place == place and (holder.pid == pid or not is_running(holder.pid))


def read_holder(session: Session) -> LeaseHolder:
    """Return the holder of the lease; its service is empty if the lease is free."""
    row = session.get(SchedulerLeaseRow, NAME)
    return LeaseHolder("", "", 0, 0) if row is None else LeaseHolder(row.holder, row.place, row.token, row.beats)


def is_running(pid: int) -> bool:
    """Return whether a process of this place runs; a zombie does not.

    Raises:
        OSError: the process cannot be read, so it may run.
    """
    facts = read_facts(pid)
    return facts is not None and facts.is_running


class SchedulerLease:
    """Lease as one process sees it."""

    def __init__(self, database: Database, service: str, lease_s: float, clock: Clock) -> None:
        self._database, self._service, self._lease_s, self._clock = database, service, lease_s, clock
        self._place, self._pid = own_place(), os.getpid()
        self._watch = SilenceWatch(lease_s)
        #: Token of the row while this process holds the lease.
        self._token: int | None = None
        self._beaten_at = float("-inf")

    def wait(self, stop: threading.Event, poll_s: float, on_look: Callable[[], object]) -> bool:
        """Stand by until this process has the lease or ``stop`` is set. Returns whether it has the lease.

        ``on_look`` is called before each attempt to take it.
        """
        self._token, self._watch = None, SilenceWatch(self._lease_s)
        logged = ""
        while not stop.is_set():
            on_look()
            try:
                with self._database.read() as session:
                    holder = read_holder(session)
                if self._take(holder):
                    logger.info("scheduler decides from now on name=%s token=%s", self._service, self._token)
                    return True
                self._beat()
                if logged != (logged := holder.service):
                    logger.info("scheduler stands by name=%s holder=%s", self._service, logged)
            except DBAPIError as error:
                logger.warning("lease not looked at error=%s", error)
            stop.wait(min(poll_s, self._lease_s / _PART))
        return False

    def renew(self) -> None:
        """Renew the lease; does nothing if it was renewed recently.

        Raises:
            LeaseLost: another process has it.
        """
        if self._clock.monotonic() - self._beaten_at < self._lease_s / _PART:
            return
        with self._database.write(is_durable=False) as session:
            self._limit_pause(session)
            now = self._clock.now()
            mine = (SchedulerLeaseRow.name == NAME, SchedulerLeaseRow.token == self._token)
            values = {"beats": SchedulerLeaseRow.beats + 1, "beat_at": now}
            if count_changed(session, update(SchedulerLeaseRow).where(*mine).values(values)) != 1:
                raise self._lost()
            beat_service(session, self._service, "scheduler", 0, now)
        self._beaten_at = self._clock.monotonic()

    def check(self, session: Session) -> None:
        """Begin a transaction of the holder, during which no other process can take the lease.

        Raises:
            LeaseLost: another process has the lease; nothing may be written.
        """
        self._limit_pause(session)
        query = select(SchedulerLeaseRow.token).where(SchedulerLeaseRow.name == NAME).with_for_update(read=True)
        if self._token is None or session.scalar(query) != self._token:
            raise self._lost()

    def give_back(self) -> None:
        """Release the lease when this process ends. If the database is unreachable, the lease runs out."""
        if self._token is not None:
            mine = (SchedulerLeaseRow.name == NAME, SchedulerLeaseRow.token == self._token)
            try:
                with self._database.write() as session:
                    count_changed(session, update(SchedulerLeaseRow).where(*mine).values(holder="", place=""))
            except DBAPIError as error:
                logger.warning("lease not given back error=%s", error)
        end_service(self._database, self._service)

    def _limit_pause(self, session: Session) -> None:
        """Set a timeout of the lease's length, after which PostgreSQL ends this transaction if the process is frozen.

        Otherwise its locks, above all on the lease's row, would last as long as the freeze.
        """
        if session.get_bind().dialect.name == "postgresql":
            session.execute(text(f"SET LOCAL idle_in_transaction_session_timeout = {int(self._lease_s * 1000)}"))

    def _lost(self) -> LeaseLost:
        return LeaseLost(f"{self._service} is no longer the deciding scheduler: another has taken over")

    def _take(self, holder: LeaseHolder) -> bool:
        signs = {f"{holder.service} {holder.token}": float(holder.beats)}
        is_silent = bool(self._watch.look(signs, self._clock.monotonic()))
        if not may_take(holder, self._place, self._pid, is_silent, is_running):
            return False
        now, token = self._clock.now(), holder.token + 1
        values = {"holder": self._service, "place": self._place, "token": token, "beats": 0, "beat_at": now}
        try:
            with self._database.write() as session:
                self._limit_pause(session)
                if holder.token == 0:
                    session.add(SchedulerLeaseRow(name=NAME, **values))
                    session.flush()
                else:
                    # An earlier taker, or a holder that has renewed since, has changed the row.
                    seen = (SchedulerLeaseRow.token == holder.token, SchedulerLeaseRow.beats == holder.beats)
                    statement = update(SchedulerLeaseRow).where(SchedulerLeaseRow.name == NAME, *seen).values(values)
                    if count_changed(session, statement) != 1:
                        return False
                beat_service(session, self._service, "scheduler", 0, now)
        except IntegrityError:  # another process has inserted the row
            return False
        self._token, self._beaten_at = token, self._clock.monotonic()
        return True

    def _beat(self) -> None:
        if self._clock.monotonic() - self._beaten_at >= self._lease_s / _PART:
            with self._database.write(is_durable=False) as session:
                beat_service(session, self._service, "scheduler", 0, self._clock.now())
            self._beaten_at = self._clock.monotonic()
