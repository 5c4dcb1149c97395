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

WAKE_KEY = "rdukit:wake"


class Notifier:
    """Tells the scheduler that there is something to do."""

    def __init__(self, broker_url: str) -> None:
        self._client = redis.Redis.from_url(plain_url(broker_url), socket_timeout=5.0, socket_connect_timeout=1.0)

    def wake(self) -> None:
        """Poke; says nothing if the broker is away, the scheduler looks by itself soon."""
        try:
            self._client.lpush(WAKE_KEY, "1")
            self._client.ltrim(WAKE_KEY, 0, 7)
        except redis.RedisError as error:
            logger.debug("not woken error=%s", error)

    def wait(self, seconds: float) -> bool:
        """Wait for a poke, at most so long. Returns whether there was one.

        Raises:
            redis.RedisError: the broker is away.
        """
        found = self._client.blpop([WAKE_KEY], timeout=seconds)
        if found:
            self._client.delete(WAKE_KEY)
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
QUEUE: Final = "rdukit.attempts"
VISIBILITY_TIMEOUT_S: Final = 7 * 24 * 3600


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
    app.send_task(TASK, args=[fencing.job_id, fencing.attempt_id, fencing.token], queue=QUEUE, retry=False)
