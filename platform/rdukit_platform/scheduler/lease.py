"""Lease of the scheduler: of several processes on one database one decides, and the others stand by.

The lease is one row. Its token grows with each holder, and each transaction of a holder begins with a look whether
the row still has its own: who was frozen, and goes on after another took over, writes nothing. Those who stand by
count by their own steady clocks how long the holder has been silent, so that no two clocks are compared; a holder whose
process they see gone has nobody to wait for.
"""

import logging
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sqlalchemy import select, text, update
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.orm import Session

from rdukit.errors import LeaseLost
from rdukit.interfaces import Clock
from rdukit.system.process import read_facts
from rdukit_platform.db.engine import Database
from rdukit_platform.db.models import SchedulerLeaseRow
from rdukit_platform.jobs.changes import count_changed
from rdukit_platform.scheduler.watches import SilenceWatch
from rdukit_platform.services import beat_service, end_service

logger = logging.getLogger(__name__)

#: The one row.
NAME: Final = "scheduler"
#: What the lease is renewed after, as a part of its length.
_PART: Final = 4


@dataclass(frozen=True, slots=True)
class LeaseHolder:
    """Holder of the lease as its row has it: the service, and where its process is to be looked for."""

    service: str
    place: str
    token: int
    beats: int

    @property
    def pid(self) -> int:
        """Process id, in the place's own count."""
        return int(self.service.rpartition(":")[2])


def may_take(holder: LeaseHolder, place: str, pid: int, is_silent: bool, is_running: Callable[[int], bool]) -> bool:
    """Return whether a process may take the lease from its holder (pure but for ``is_running``).

    ``place`` and ``pid`` are the asking process's; of processes in other places it knows only their silence.
    """
    if is_silent or not holder.service:
        return True
    return holder.place == place and (holder.pid == pid or not is_running(holder.pid))


def read_holder(session: Session) -> LeaseHolder:
    """Return who holds the lease; of one that nobody holds, the service is empty."""
    row = session.get(SchedulerLeaseRow, NAME)
    return LeaseHolder("", "", 0, 0) if row is None else LeaseHolder(row.holder, row.place, row.token, row.beats)


def own_place() -> str:
    """Return what tells processes that this one can see from others: this boot, and this space of process ids."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}/{os.readlink('/proc/self/ns/pid')}"


def is_running(pid: int) -> bool:
    """Return whether a process that this one could see runs; one that nobody has buried yet does not.

    Raises:
        OSError: it cannot be read, and so may well run.
    """
    facts = read_facts(pid)
    return facts is not None and facts.is_running


class SchedulerLease:
    """Lease as one process sees it."""

    def __init__(self, database: Database, service: str, lease_s: float, clock: Clock) -> None:
        self._database, self._service, self._lease_s, self._clock = database, service, lease_s, clock
        self._place, self._pid = own_place(), os.getpid()
        self._watch = SilenceWatch(lease_s)
        #: What the row has as long as this process holds it.
        self._token: int | None = None
        self._beaten_at = float("-inf")

    def wait(self, stop: threading.Event, poll_s: float, on_look: Callable[[], object]) -> bool:
        """Stand by until this process has the lease, which is then so, or ``stop`` is set.

        ``on_look`` is called before each look.
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
        """Say that the holder works; does nothing where it has lately.

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
        """Begin a transaction of the holder: until it ends, nobody can take the lease.

        Raises:
            LeaseLost: another process has the lease; nothing may be written.
        """
        self._limit_pause(session)
        query = select(SchedulerLeaseRow.token).where(SchedulerLeaseRow.name == NAME).with_for_update(read=True)
        if self._token is None or session.scalar(query) != self._token:
            raise self._lost()

    def give_back(self) -> None:
        """Let another take it at once, and say that this process ends. Without a database its silence says so."""
        if self._token is not None:
            mine = (SchedulerLeaseRow.name == NAME, SchedulerLeaseRow.token == self._token)
            try:
                with self._database.write() as session:
                    count_changed(session, update(SchedulerLeaseRow).where(*mine).values(holder="", place=""))
            except DBAPIError as error:
                logger.warning("lease not given back error=%s", error)
        end_service(self._database, self._service)

    def _limit_pause(self, session: Session) -> None:
        """Let a server end this transaction when its process has been frozen in it for the lease's length.

        What the transaction has locked, the lease's row above all, would be locked for as long as that.
        """
        if session.get_bind().dialect.name == "postgresql":
            session.execute(text(f"SET LOCAL idle_in_transaction_session_timeout = {int(self._lease_s * 1000)}"))

    def _lost(self) -> LeaseLost:
        return LeaseLost(f"{self._service} is not the scheduler that decides any more: another has taken over")

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
                    # Who read the same row and was earlier, or holds it and has beaten since, has changed it.
                    seen = (SchedulerLeaseRow.token == holder.token, SchedulerLeaseRow.beats == holder.beats)
                    statement = update(SchedulerLeaseRow).where(SchedulerLeaseRow.name == NAME, *seen).values(values)
                    if count_changed(session, statement) != 1:
                        return False
                beat_service(session, self._service, "scheduler", 0, now)
        except IntegrityError:  # another one's row
            return False
        self._token, self._beaten_at = token, self._clock.monotonic()
        return True

    def _beat(self) -> None:
        if self._clock.monotonic() - self._beaten_at >= self._lease_s / _PART:
            with self._database.write(is_durable=False) as session:
                beat_service(session, self._service, "scheduler", 0, self._clock.now())
            self._beaten_at = self._clock.monotonic()
