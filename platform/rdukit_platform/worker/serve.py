"""Worker process: Celery's thread pool of attempts, the heartbeat threads, and acknowledgement of messages."""

import logging
import os
import socket
import threading
from typing import Any, Final

import celery.apps.worker
from celery.signals import worker_shutting_down
from celery.worker.request import Request
from kombu.message import Message

from rdukit.interfaces import SystemClock
from rdukit.settings import JSON, LOG_FORMAT, LOG_LEVEL, resolve
from rdukit_platform.artifacts.stores.opening import open_store
from rdukit_platform.audit.writer import AuditWriter
from rdukit_platform.backends.job_boxes import open_backend
from rdukit_platform.db.engine import Database
from rdukit_platform.db.migrate import migrate
from rdukit_platform.heartbeat_file import HeartbeatFile
from rdukit_platform.jobs.broker import QUEUE, TASK, Notifier, make_app, queue_of
from rdukit_platform.jobs.execution import FencingToken
from rdukit_platform.nodes.registry import NodeIdentity, read_home_id
from rdukit_platform.setting_texts import read_node_labels
from rdukit_platform.settings import (
    BOX_IDLE_S,
    JOB_BACKOFF_S,
    NODE_LABELS,
    NODE_LINK_HOST,
    WORKER_LEASE_S,
    WORKER_REPLICAS,
    WORKER_SLOTS,
    WORKER_START_S,
    Home,
)
from rdukit_platform.worker.attempts.run import AttemptRun
from rdukit_platform.worker.context import WorkerContext
from rdukit_platform.worker.heartbeat import LeaseHeartbeat
from rdukit_platform.worker.keeper import ReplicaKeeper
from rdukit_platform.worker.node import NodeAgent
from rdukit_platform.worker.orphans import OrphanReaper
from rdukit_platform.worker.parts import choose_link_host
from rdukit_platform.worker.pool import BoxPool
from rdukit_platform.worker.walls import open_fences, open_walls

logger = logging.getLogger(__name__)

CELERY_OPTIONS: Final = ("--pool=threads", "--without-gossip", "--without-mingle", "--without-heartbeat")


class AttemptRunner:
    """The attempts of one worker process."""

    def __init__(self, context: WorkerContext) -> None:
        self._context = context
        self._lock = threading.Lock()
        self._attempts: set[AttemptRun] = set()
        self._is_stopping = threading.Event()

    def run(self, fencing: FencingToken) -> None:
        """Run an attempt to its end, unless the worker is stopping (the message is redelivered) or another has claimed
        it.
        """
        if self._is_stopping.is_set():
            return
        attempt = AttemptRun(self._context, fencing, self._is_stopping)
        with self._lock:
            self._attempts.add(attempt)
        try:
            attempt.run()
        finally:
            with self._lock:
                self._attempts.discard(attempt)
        self._context.notifier.wake()

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
    name, node = f"worker@{socket.gethostname()}:{os.getpid()}", home.node_name()
    backend, rules = open_backend(home, is_worker=True)
    walls = open_walls(backend)
    link_host = choose_link_host(resolve(NODE_LINK_HOST), backend.name, walls)
    database, clock = Database.of_home(home), SystemClock()
    migrate(database)
    heartbeat = LeaseHeartbeat(
        database, clock, name, slots, resolve(WORKER_LEASE_S), HeartbeatFile(home.run, "worker"), walls.description,
        node,
    )  # fmt: skip
    orphan_reaper = OrphanReaper(backend, database, home.work, home.pools)
    notifier = Notifier(home.broker_url())
    context = WorkerContext(
        home=home,
        database=database,
        store=open_store(home),
        heartbeat=heartbeat,
        notifier=notifier,
        clock=clock,
        name=name,
        node=node,
        backend=backend,
        rules=rules,
        fences=open_fences(home, walls),
        audit=AuditWriter(database, clock),
        box_start_s=resolve(WORKER_START_S),
        backoff_s=resolve(JOB_BACKOFF_S),
        pool=(pool := BoxPool(backend, rules, home.pools, clock, resolve(BOX_IDLE_S), 2 * slots)),
        link_host=link_host,
    )
    runner = AttemptRunner(context)
    labels = read_node_labels(resolve(NODE_LABELS))
    identity = NodeIdentity(node, read_home_id(home.node_id_file), socket.gethostname(), labels, link_host)
    agent = NodeAgent(context, identity)
    keeper = ReplicaKeeper(context, resolve(WORKER_REPLICAS), lambda: agent.is_up)
    app = make_app(home.broker_url())

    @app.task(name=TASK, Request=AttemptRequest)  # type: ignore[untyped-decorator]
    def run_attempt(job_id: str, attempt_id: str, token: str, part: int = 0) -> None:
        runner.run(FencingToken(job_id, attempt_id, token, part=part))

    def stop(**_: object) -> None:
        # Outside of the signal handler's frame, which may have interrupted a holder of a lock.
        threading.Thread(target=runner.stop, name="stop").start()
        threading.Thread(target=keeper.stop, name="stop-replicas").start()

    worker_shutting_down.connect(stop, weak=False)
    agent.start()
    heartbeat.start()
    orphan_reaper.start()
    keeper.start()
    logger.info("worker up name=%s node=%s slots=%d boxes=%s walls=%s", name, node, slots, backend.name, walls.kind)
    options = [f"--concurrency={slots}", f"--loglevel={resolve(LOG_LEVEL)}", f"--queues={queue_of(node)},{QUEUE}"]
    try:
        # Celery's banner and shutdown message are plain text, which would break a log of JSON lines.
        quiet = ["--quiet"] if resolve(LOG_FORMAT) == JSON else []
        if quiet:
            celery.apps.worker.safe_say = lambda *_: None
        app.worker_main([*quiet, "worker", *CELERY_OPTIONS, *options])
    finally:
        keeper.stop()
        agent.stop()
        heartbeat.stop()
        orphan_reaper.stop()
        pool.close()
        backend.close()
        context.audit.close()
        database.close()
        notifier.close()


class AttemptRequest(Request):  # type: ignore[misc]
    """Request that makes the consumer reconnect if the acknowledgement of an attempt fails.

    Celery only logs such an error, and the message stays unacknowledged. If all slots of a worker are blocked so, it
    receives no further message, and notices no lost connection. The database records ended attempts, so a redelivered
    message is dropped.
    """

    def __init__(self, message: Message, **options: Any) -> None:
        super().__init__(message, **{**options, "connection_errors": ()})
