"""The worker process: Celery's thread pool around attempts, one heartbeat thread."""

import logging
import os
import socket
import threading
from typing import Final

from celery.signals import worker_shutting_down

from rdukit.interfaces import SystemClock
from rdukit.settings import LOG_LEVEL, resolve
from rdukit_platform.artifacts.store import Store
from rdukit_platform.backends.job_boxes import open_backend
from rdukit_platform.beat_file import BeatFile
from rdukit_platform.broker import Waker
from rdukit_platform.db.engine import Database
from rdukit_platform.db.migrate import migrate
from rdukit_platform.jobs.execution import Ticket
from rdukit_platform.settings import (
    JOB_BACKOFF_S,
    WORKER_LEASE_S,
    WORKER_SLOTS,
    WORKER_START_S,
    Home,
)
from rdukit_platform.worker.app import TASK, make_app
from rdukit_platform.worker.attempt import Attempt, Surroundings
from rdukit_platform.worker.hearts import Hearts
from rdukit_platform.worker.left_behind import Sweeper
from rdukit_platform.worker.request import AttemptRequest
from rdukit_platform.worker.walls import open_fences, open_walls

logger = logging.getLogger(__name__)

CELERY_OPTIONS: Final = ("--pool=threads", "--without-gossip", "--without-mingle", "--without-heartbeat")


class Runner:
    """The attempts of one worker process."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around
        self._lock = threading.Lock()
        self._attempts: set[Attempt] = set()
        self._is_stopping = threading.Event()

    def run(self, ticket: Ticket) -> None:
        """Run an attempt to its end, unless the worker is stopping (its message comes back) or another has it."""
        if self._is_stopping.is_set():
            return
        attempt = Attempt(self._around, ticket, self._is_stopping)
        with self._lock:
            self._attempts.add(attempt)
        try:
            attempt.run()
        finally:
            with self._lock:
                self._attempts.discard(attempt)

    def stop(self) -> None:
        """Interrupt all attempts; each is queued again and continues from its checkpoint."""
        self._is_stopping.set()
        with self._lock:
            attempts = list(self._attempts)
        for attempt in attempts:
            attempt.abort()


def serve(home: Home) -> None:
    """Run a worker until SIGTERM."""
    slots = resolve(WORKER_SLOTS)
    name = f"worker@{socket.gethostname()}:{os.getpid()}"
    backend, rules = open_backend(home)
    walls = open_walls(backend)
    database, clock = Database.of_home(home), SystemClock()
    migrate(database)
    hearts = Hearts(database, clock, name, slots, resolve(WORKER_LEASE_S), BeatFile(home.run, "worker"), walls.told)
    sweeper = Sweeper(backend, database, home.work)
    waker = Waker(home.broker_url())
    runner = Runner(
        Surroundings(
            home=home,
            database=database,
            store=Store(home.artifacts),
            hearts=hearts,
            waker=waker,
            clock=clock,
            name=name,
            backend=backend,
            rules=rules,
            fences=open_fences(home, walls),
            box_start_s=resolve(WORKER_START_S),
            backoff_s=resolve(JOB_BACKOFF_S),
        )
    )
    app = make_app(home.broker_url())

    @app.task(name=TASK, Request=AttemptRequest)  # type: ignore[untyped-decorator]
    def run_attempt(job_id: str, attempt_id: str, token: str) -> None:
        runner.run(Ticket(job_id, attempt_id, token))

    def stop(**_: object) -> None:
        # Off the signal handler's frame: it may have interrupted somebody who holds a lock.
        threading.Thread(target=runner.stop, name="stop").start()

    worker_shutting_down.connect(stop, weak=False)
    hearts.start()
    sweeper.start()
    logger.info("worker up name=%s slots=%d boxes=%s walls=%s", name, slots, backend.name, walls.kind)
    try:
        app.worker_main(["worker", *CELERY_OPTIONS, f"--concurrency={slots}", f"--loglevel={resolve(LOG_LEVEL)}"])
    finally:
        hearts.stop()
        sweeper.stop()
        backend.close()
        database.close()
        waker.close()
