"""The broker besides Celery: waking the scheduler. Losing a call costs at most one poll interval."""

import logging

import redis

logger = logging.getLogger(__name__)

WAKE_KEY = "rdukit:wake"


class Waker:
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
        """Whether the broker answers."""
        try:
            return bool(self._client.ping())
        except redis.RedisError:
            return False

    def close(self) -> None:
        """Close the connections."""
        self._client.close()


def plain_url(broker_url: str) -> str:
    """Kombu's ``redis+socket://`` as the client's ``unix://``."""
    return broker_url.replace("redis+socket://", "unix://", 1)
