"""Scheduler process: reads a snapshot, asks ``decide``, writes the admissions, sends the messages, reconciles.

It works while it holds the lease (``scheduler.lease``); others stand by. Silence counts as death only if this host was
not frozen itself (``scheduler.watches``).
"""

import logging
import os
import signal
import socket
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

import redis
from celery import Celery
from kombu.exceptions import OperationalError as BrokerError
from sqlalchemy.exc import DBAPIError

from rdukit.errors import Conflict, LeaseLost, RdukitError
from rdukit.interfaces import Clock, SystemClock
from rdukit.settings import resolve
from rdukit.telemetry.spans import is_traced
from rdukit_platform.artifacts.removal import expire_artifacts
from rdukit_platform.artifacts.stores.opening import open_store
from rdukit_platform.artifacts.sweep import collect
from rdukit_platform.artifacts.uploads import Uploads
from rdukit_platform.audit.service import prune_by_settings
from rdukit_platform.catalog.catalog import Catalog
from rdukit_platform.db.engine import Database
from rdukit_platform.db.models import JobRow
from rdukit_platform.endpoints.replicas import reconcile
from rdukit_platform.heartbeat_file import HeartbeatFile
from rdukit_platform.jobs.broker import Notifier, make_app, publish
from rdukit_platform.jobs.execution import FencingToken, admit_all, ask_preemption
from rdukit_platform.jobs.fencing import PartPlace, add_parts
from rdukit_platform.jobs.overdue import (
    end_late_jobs,
    end_overruns,
    expire_attempts,
    queue_due_jobs,
    read_open_attempts,
    read_part_leases,
    take_unclaimed,
)
from rdukit_platform.jobs.promotion import promote_all
from rdukit_platform.jobs.trace import tell_wait
from rdukit_platform.nodes.registry import LAPSED, lose, needs_release, read_beats, release_absent
from rdukit_platform.scheduler.decide import decide
from rdukit_platform.scheduler.lease import SchedulerLease
from rdukit_platform.scheduler.settings import (
    SCHEDULER_HALF_LIFE_S,
    SCHEDULER_LEASE_S,
    SCHEDULER_POLL_S,
    SCHEDULER_REPUBLISH_S,
)
from rdukit_platform.scheduler.shares import PastUsage
from rdukit_platform.scheduler.snapshot import UsageReader, find_news, needs_pass, read_snapshot, record_waits
from rdukit_platform.scheduler.watches import AgeWatch, SilenceWatch
from rdukit_platform.schedules.keeper import ScheduleKeeper
from rdukit_platform.settings import JOB_BACKOFF_S, NODE_LOST_S, WORKER_LEASE_S, Home
from rdukit_platform.sweeps.advance import advance_sweeps
from rdukit_platform.webhooks.dispatcher import WebhookSender

logger = logging.getLogger(__name__)

#: Seconds between summaries of the tenants' recent use.
USAGE_S: Final = 10.0
#: Seconds between deletions of old audit entries and of unused artifacts and content.
PRUNE_S: Final = 3600.0
#: Seconds between steps of sweeps.
SWEEPS_S: Final = 0.5
#: Seconds between thorough passes. The other passes, woken by each submission and end of a job, only admit.
THOROUGH_S: Final = 0.25
#: Seconds that shutdown waits for a step of ``tidy``.
TIDY_STOP_S: Final = 5.0


class _Stopped(Exception):
    """The scheduler is stopping."""


class Scheduler:
    """Scheduler of a platform while it holds the lease; after the loss of the lease its writes are refused."""

    def __init__(
        self, home: Home, database: Database, app: Celery, notifier: Notifier, clock: Clock, lease: SchedulerLease,
        stop: threading.Event,
    ) -> None:  # fmt: skip
        self._home, self._app, self._notifier, self._clock, self._lease = home, app, notifier, clock, lease
        self._database, self._unfenced = database.fenced(lease.check), database
        self._heartbeat_file = HeartbeatFile(home.run, "scheduler")
        self._is_asked_to_stop = stop
        #: Ends the helper threads: at shutdown, or when the lease is lost.
        self._stop = threading.Event()
        self._pruned_at = self._usage_at = self._swept_at = float("-inf")
        self._usage_reader = UsageReader(resolve(SCHEDULER_HALF_LIFE_S))
        self._usage: PastUsage | None = None
        self._attempts, self._replicas = (LeaseWatch(clock, resolve(WORKER_LEASE_S)) for _ in range(2))
        self._ages = AgeWatch()
        self._nodes = SilenceWatch(resolve(NODE_LOST_S))
        self._store = open_store(home)

    def run(self) -> None:
        """Run until the process is stopped, or the lease is lost."""
        # A thread of its own: a scan of much content must not delay jobs.
        keeper = threading.Thread(target=self._keep_house, name="keeper", daemon=True)
        keeper.start()
        # Several processes may deliver: the message's row names its owner.
        sender = WebhookSender(self._unfenced, self._clock)
        sender.start()
        schedules = ScheduleKeeper(self._database, self._store, Catalog().boxes, self._clock, self._notifier.wake)
        schedules.start()
        try:
            self._work(resolve(SCHEDULER_POLL_S))
        except LeaseLost as lost:
            logger.warning("scheduler decides no more why=%s", lost.message)
        finally:
            self._stop.set()
            sender.close()
            schedules.close()
            keeper.join(TIDY_STOP_S)

    def _work(self, poll_s: float) -> None:
        with self._database.write() as session:
            promote_all(session, self._clock.now())
        thorough_at = float("-inf")
        while not self._is_asked_to_stop.is_set():
            self._heartbeat_file.touch()
            is_thorough = self._clock.monotonic() - thorough_at >= THOROUGH_S
            if is_thorough:
                thorough_at = self._clock.monotonic()
            try:
                self.run_once(is_thorough=is_thorough)
            except (DBAPIError, Conflict) as error:
                logger.warning("pass given up error=%s", error)
            try:
                self._notifier.wait(poll_s if is_thorough else THOROUGH_S)
            except redis.RedisError:
                self._is_asked_to_stop.wait(poll_s)

    def tidy(self) -> None:
        """Expire artifacts and collect unreferenced content. Ends early if the scheduler stops."""
        now = self._clock.now()
        expire_artifacts(self._database, now)
        Uploads(self._store).expire(now)
        with suppress(_Stopped):
            collect(self._database, self._store, now, on_step=self._go_on)

    def _keep_house(self) -> None:
        while not self._stop.is_set():
            try:
                self.tidy()
            except (DBAPIError, RdukitError, OSError) as error:
                logger.warning("artifacts not tidied error=%s", error)
            self._stop.wait(PRUNE_S)

    def _go_on(self, step: str) -> None:
        if self._stop.is_set():
            raise _Stopped

    def run_once(self, *, is_thorough: bool = True) -> int:
        """Run one pass: recover, admit. Returns the number of sent messages.

        Args:
            is_thorough: also check nodes and endpoints, and recover lost attempts and messages.
        Raises:
            LeaseLost: another scheduler has taken over.
        """
        self._lease.renew()
        now = self._clock.now()
        if self._clock.monotonic() - self._pruned_at > PRUNE_S:
            self._pruned_at = self._clock.monotonic()
            prune_by_settings(self._database, now)
        if self._clock.monotonic() - self._swept_at > SWEEPS_S:
            self._swept_at = self._clock.monotonic()
            advance_sweeps(self._database, now)
        if is_thorough:
            self._watch_nodes(now)
            reconcile(self._database, now, self._replicas.find_silent)
        with self._database.read() as session:
            if not needs_pass(session):
                return 0
        fencing_tokens = self._recover(now) if is_thorough else []
        fencing_tokens += self._admit(now)
        for fencing in fencing_tokens:
            self._publish(fencing)
        return len(fencing_tokens)

    def _watch_nodes(self, now: float) -> None:
        with self._database.read() as session:
            beats = read_beats(session)
            lost = self._nodes.look(beats, self._clock.monotonic())
            if not lost and not needs_release(session):
                return
        with self._database.write() as session:
            lose(session, lost, now)
            release_absent(session, now)
        for name in lost:
            logger.warning("node lost node=%s", name)

    def _recover(self, now: float) -> list[FencingToken]:
        silent, overrunning = self._watch_attempts(now)
        # Need not be durable: after a power loss the clocks lead to the same writes again.
        with self._database.write(is_durable=False) as session:
            expired = expire_attempts(session, silent, resolve(JOB_BACKOFF_S), now)
            overran = end_overruns(session, overrunning, now)
            late = end_late_jobs(session, now)
            queue_due_jobs(session, now)
            again = take_unclaimed(session, resolve(SCHEDULER_REPUBLISH_S), now)
        if expired:
            logger.warning("leases expired attempts=%d", expired)
        if overran:
            logger.info("run limits exceeded jobs=%d", overran)
        if late:
            logger.info("deadlines exceeded jobs=%d", late)
        return again

    def _watch_attempts(self, now: float) -> tuple[dict[str, float], list[str]]:
        """Return the lost attempts, each with its lease, and the ids of attempts beyond their run limits."""
        with self._database.read() as session:
            found, of_parts = read_open_attempts(session), read_part_leases(session)
        leases = {id: each.lease for id, each in found.items() if each.lease is not None} | of_parts
        silent = self._attempts.find_silent(leases)
        limits = {id: each.run_limit_s for id, each in found.items() if each.run_limit_s is not None}
        began = {id: at for id in limits if (at := found[id].claimed_at) is not None}
        ages = self._ages.look(began, self._clock.monotonic(), now)
        return silent, [id for id, age_s in ages.items() if age_s > limits[id]]

    def _admit(self, now: float) -> list[FencingToken]:
        # Decisions take no lock: changes made meanwhile are left to the next pass.
        with self._database.read() as session:
            if self._clock.monotonic() - self._usage_at > USAGE_S:
                self._usage, self._usage_at = self._usage_reader.read(session, now), self._clock.monotonic()
            snapshot = read_snapshot(session, now, self._usage)
        decision = decide(snapshot)
        news = find_news(snapshot.queued, decision.waits, now)
        if not decision.admissions and not news and not decision.preemptions:
            return []
        # Need not be durable: a power loss loses the message and its attempt together, and the job is still queued.
        with self._database.write(is_durable=False) as session:
            preempted = [
                each for each in decision.preemptions if ask_preemption(session, each.job_id, each.for_job, now)
            ]
            fencing_tokens, admitted = list[FencingToken](), list[tuple[JobRow, int]]()
            # Jobs cancelled meanwhile are left out.
            for first in admit_all(session, {id: decision.placements[id] for id in decision.admissions}, now):
                others = [PartPlace(part.node, part.members) for part in decision.parts.get(first.job_id, ())[1:]]
                fencing_tokens += [first, *(add_parts(session, first, others, now) if others else ())]
                if is_traced() and (job := session.get(JobRow, first.job_id)) is not None:
                    admitted.append((job, job.attempt))
            record_waits(session, news)
        for each in preempted:
            logger.info("preempted job=%s for=%s", each.job_id, each.for_job)
        for job, attempt in admitted:
            tell_wait(job, attempt, now)
        for fencing in fencing_tokens:
            logger.info("admitted job=%s attempt=%s node=%s", fencing.job_id, fencing.attempt_id, fencing.node)
        return fencing_tokens

    def _publish(self, fencing: FencingToken) -> None:
        try:
            publish(self._app, fencing)
        except (BrokerError, redis.RedisError) as error:
            # The attempt stays unclaimed, so a later pass sends its message again.
            logger.warning("message not sent job=%s error=%s", fencing.job_id, error)


def serve(home: Home) -> None:
    """Run a scheduler until SIGTERM: stand by, and decide while it holds the lease."""
    from rdukit_platform.db.migrate import migrate

    clock, stop = SystemClock(), threading.Event()
    database = Database.of_home(home)
    migrate(database)
    app, notifier = make_app(home.broker_url()), Notifier(home.broker_url())
    name = f"scheduler@{socket.gethostname()}:{os.getpid()}"
    lease = SchedulerLease(database, name, resolve(SCHEDULER_LEASE_S), clock)
    beat_file = HeartbeatFile(home.run, "scheduler")
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    logger.info("scheduler up name=%s", name)
    while lease.wait(stop, resolve(SCHEDULER_POLL_S), beat_file.touch):
        Scheduler(home, database, app, notifier, clock, lease, stop).run()
    lease.give_back()
    beat_file.remove()
    database.close()


class LeaseWatch:
    """Watch over leases that workers extend by heartbeats."""

    def __init__(self, clock: Clock, lease_s: float) -> None:
        self._clock, self._watch = clock, SilenceWatch(lease_s)

    def find_silent(self, leases: Mapping[str, float]) -> dict[str, float]:
        """Return the leases that were not extended in time, or that have lapsed."""
        lost = self._watch.look(leases, self._clock.monotonic())
        return {name: lease for name, lease in leases.items() if name in lost or lease == LAPSED}
