"""Broker: the Celery app that carries attempts, and the notifier that wakes the scheduler.

The database is the record: a lost message costs at most one poll interval.

Source: serving reference 7 and 10. Messages are acknowledged late, so a killed worker's message is redelivered. The
    visibility timeout exceeds every attempt, because the reconciler recovers lost attempts. kombu looks for lost
    messages every 2 s instead of every 100 s. Results and countdowns are off.
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
    """Wakes the scheduler, or a node's workers, when there is work."""

    def __init__(self, broker_url: str) -> None:
        self._client = redis.Redis.from_url(plain_url(broker_url), socket_timeout=5.0, socket_connect_timeout=1.0)

    def wake(self) -> None:
        """Wake the scheduler. An unreachable broker is only logged: the scheduler also polls."""
        self._poke(WAKE_KEY)

    def wake_node(self, node: str) -> None:
        """Wake a worker of a node, so that it reads its daemon's state and its orders."""
        self._poke(f"{NODE_KEY}:{node}")

    def wait(self, seconds: float) -> bool:
        """Wait up to ``seconds`` for a call of ``wake``. Returns whether there was one.

        Raises:
            redis.RedisError: the broker is unreachable.
        """
        return self._wait(WAKE_KEY, seconds)

    def wait_for_node(self, node: str, seconds: float) -> bool:
        """Wait up to ``seconds`` for a call of ``wake_node``. Returns whether there was one.

        Raises:
            redis.RedisError: the broker is unreachable.
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
    """Convert Kombu's ``redis+socket://`` to the client's ``unix://``."""
    return broker_url.replace("redis+socket://", "unix://", 1)


TASK: Final = "rdukit.run_attempt"
#: Queue of attempts without a node, which early versions with a single node wrote.
QUEUE: Final = "rdukit.attempts"
VISIBILITY_TIMEOUT_S: Final = 7 * 24 * 3600


def queue_of(node: str | None) -> str:
    """Return the queue of a node's attempts, on which only the node's workers listen."""
    return QUEUE if node is None else f"{QUEUE}.{node}"


def make_app(broker_url: str) -> Celery:
    """Return a Celery app on this broker, on which the worker registers its task."""
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
        # A worker survives refusals of the broker, which refuses everything while its disk is full.
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
    """Send the message of an attempt; sending it twice is harmless.

    Raises:
        kombu.exceptions.OperationalError: the broker is unreachable; the reconciler sends the message again.
    """
    args: list[str | int] = [fencing.job_id, fencing.attempt_id, fencing.token]
    if fencing.part:
        args.append(fencing.part)
    app.send_task(TASK, args=args, queue=queue_of(fencing.node), retry=False)
