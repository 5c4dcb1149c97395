"""Broker: the Celery app that carries attempts, and the notifier that wakes the scheduler.

The database remembers; losing a call costs at most one poll interval.

Source: serving reference 7 and 10. Late acknowledgement, so that a killed worker's message is not lost; a visibility
timeout beyond any attempt, because it is no means of recovery here (the reconciler is); kombu's search for lost
messages every 2 s instead of every 100 s; no results, no countdowns.
"""

import logging
from typing import Final

import redis
from celery import Celery

from rdukit_platform.jobs.execution import FencingToken

logger = logging.getLogger(__name__)

WAKE_KEY: Final = "rdukit:wake"
NODE_KEY: Final = "rdukit:node"


class Notifier:
    """Tells the scheduler, or a node's workers, that there is something to do."""

    def __init__(self, broker_url: str) -> None:
        self._client = redis.Redis.from_url(plain_url(broker_url), socket_timeout=5.0, socket_connect_timeout=1.0)

    def wake(self) -> None:
        """Poke the scheduler; says nothing if the broker is away, it looks by itself soon."""
        self._poke(WAKE_KEY)

    def wake_node(self, node: str) -> None:
        """Poke a worker of a node, so that it looks at its daemon and at the orders to it."""
        self._poke(f"{NODE_KEY}:{node}")

    def wait(self, seconds: float) -> bool:
        """Wait for a poke of the scheduler, at most so long. Returns whether there was one.

        Raises:
            redis.RedisError: the broker is away.
        """
        return self._wait(WAKE_KEY, seconds)

    def wait_for_node(self, node: str, seconds: float) -> bool:
        """Wait for a poke of a node's workers, at most so long. Returns whether there was one.

        Raises:
            redis.RedisError: the broker is away.
        """
        return self._wait(f"{NODE_KEY}:{node}", seconds)

    def _poke(self, key: str) -> None:
        try:
            self._client.lpush(key, "1")
            self._client.ltrim(key, 0, 7)
        except redis.RedisError as error:
            logger.debug("not woken key=%s error=%s", key, error)

    def _wait(self, key: str, seconds: float) -> bool:
        found = self._client.blpop([key], timeout=seconds)
        if found:
            self._client.delete(key)
        return bool(found)

    def is_up(self) -> bool:
        """Return whether the broker answers."""
        try:
            return bool(self._client.ping())
        except redis.RedisError:
            return False

    def close(self) -> None:
        """Close the connections."""
        self._client.close()


def plain_url(broker_url: str) -> str:
    """Turn Kombu's ``redis+socket://`` into the client's ``unix://``."""
    return broker_url.replace("redis+socket://", "unix://", 1)


TASK: Final = "rdukit.run_attempt"
#: Of attempts without a node, as versions with one node only wrote them.
QUEUE: Final = "rdukit.attempts"
VISIBILITY_TIMEOUT_S: Final = 7 * 24 * 3600


def queue_of(node: str | None) -> str:
    """Return the queue of the attempts that were placed on a node: only its workers listen there."""
    return QUEUE if node is None else f"{QUEUE}.{node}"


def make_app(broker_url: str) -> Celery:
    """Return a Celery app on this broker; the worker registers its task with it."""
    app = Celery("rdukit", broker=broker_url)
    app.conf.update(
        task_default_queue=QUEUE,
        task_acks_late=True,
        task_reject_on_worker_lost=True,
        task_ignore_result=True,
        task_track_started=False,
        task_serializer="json",
        accept_content=["json"],
        worker_prefetch_multiplier=1,
        worker_hijack_root_logger=False,
        worker_enable_remote_control=False,
        worker_cancel_long_running_tasks_on_connection_loss=False,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        # What the broker refuses, as it does everything while its disk is full, ends no worker.
        broker_channel_error_retry=True,
        broker_transport_options={
            "visibility_timeout": VISIBILITY_TIMEOUT_S,
            "unacked_restore_interval": 2,
            "unacked_restore_throttle": 1,
            "health_check_interval": 10,
            "socket_connect_timeout": 2,
        },
    )
    return app


def publish(app: Celery, fencing: FencingToken) -> None:
    """Send the message of an attempt. Sending it twice does no harm.

    Raises:
        kombu.exceptions.OperationalError: the broker is away; the reconciler sends it again.
    """
    args: list[str | int] = [fencing.job_id, fencing.attempt_id, fencing.token]
    if fencing.part:
        args.append(fencing.part)
    app.send_task(TASK, args=args, queue=queue_of(fencing.node), retry=False)
