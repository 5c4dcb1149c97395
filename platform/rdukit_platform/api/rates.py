"""Rate limits: requests a minute of one token, and of one tenant, counted in the broker for all gateways together.

Logins are counted by address.

A sliding window counts (this minute, and the part of the last one within 60 s), so a burst around the turn of a minute
has no advantage. Without the broker a gateway counts alone.
"""

import logging
import math
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import redis

from rdukit.errors import InvalidArgument, Overloaded
from rdukit.settings import resolve
from rdukit_platform.identity.settings import LOGIN_RATE
from rdukit_platform.jobs.broker import plain_url
from rdukit_platform.settings import TENANT_RATE, TOKEN_RATE
from rdukit_platform.tenants.service import Caller

if TYPE_CHECKING:
    from limits.strategies import SlidingWindowCounterRateLimiter

logger = logging.getLogger(__name__)

#: Detail of an ``Overloaded`` error: seconds to wait, as an integer.
RETRY_AFTER: Final = "retry_after_s"
_PREFIX: Final = "rdukit:rate"
#: Longest wait for the broker in seconds; then this gateway counts alone.
_BROKER_S: Final = 1.0


class Rates:
    """Counts of requests. Thread-safe; contacts the broker only if a limit is set."""

    def __init__(self, broker_url: str) -> None:
        #: Setting, kind of count, and limit per minute.
        self._limits = [
            (TOKEN_RATE.name, "token", resolve(TOKEN_RATE)),
            (TENANT_RATE.name, "tenant", resolve(TENANT_RATE)),
        ]
        self._logins = [(LOGIN_RATE.name, "address", resolve(LOGIN_RATE))]
        #: Whether the broker failed to answer the last request; logged once.
        self._is_alone = False
        self._shared: SlidingWindowCounterRateLimiter | None = None
        self._own: SlidingWindowCounterRateLimiter | None = None
        if any(rate for _, _, rate in [*self._limits, *self._logins]):
            self._open(broker_url)

    def _open(self, broker_url: str) -> None:
        from limits.storage import MemoryStorage, RedisStorage
        from limits.strategies import SlidingWindowCounterRateLimiter

        pool = redis.ConnectionPool.from_url(
            plain_url(broker_url), socket_timeout=_BROKER_S, socket_connect_timeout=_BROKER_S
        )
        self._shared = SlidingWindowCounterRateLimiter(
            RedisStorage("redis://", connection_pool=pool, key_prefix=_PREFIX)
        )
        self._own = SlidingWindowCounterRateLimiter(MemoryStorage())

    def check(self, caller: Caller) -> None:
        """Count a request of a caller.

        Raises:
            Overloaded: the limit of its token or tenant is reached; the detail says when to retry.
        """
        self._count(self._limits, _names_of(caller))

    def check_batch(self, caller: Caller, jobs: int, what: str = "batch", parts: str = "jobs") -> None:
        """Count the jobs of a batch like single requests; the batch's own request is counted already.

        Args:
            what: a batch, a pipeline or a sweep. parts: its name for the jobs.

        Raises:
            Overloaded: as ``check``.
            InvalidArgument: they exceed the limit of a minute.
        """
        for setting, kind, rate in self._limits:
            if 0 < rate < jobs:
                raise InvalidArgument(
                    f"the {what} has {jobs} {parts}, but a {kind} may send {rate} jobs per minute ({setting}); send "
                    f"at most {rate} in one {what}, and the others a minute later"
                )
        if jobs > 1:
            self._count(self._limits, _names_of(caller), jobs - 1, f"the {jobs} {parts} of the {what}")

    def check_login(self, address: str) -> None:
        """Count a login that an address begins. Raises ``Overloaded`` as ``check``."""
        self._count(self._logins, {"address": address})

    def _count(
        self, limits: Sequence[tuple[str, str, int]], names: Mapping[str, str], requests: int = 1, what: str = ""
    ) -> None:
        if self._shared is None or self._own is None:
            return
        try:
            self._check(self._shared, limits, names, requests, what)
            self._is_alone = False
        except redis.RedisError as error:
            if not self._is_alone:
                logger.warning("requests are counted by this gateway alone: the broker does not answer error=%s", error)
            self._is_alone = True
            self._check(self._own, limits, names, requests, what)

    def _check(
        self,
        limiter: "SlidingWindowCounterRateLimiter",
        limits: Sequence[tuple[str, str, int]],
        names: Mapping[str, str],
        requests: int,
        what: str,
    ) -> None:
        from limits import RateLimitItemPerMinute

        for setting, kind, rate in limits:
            if not rate:
                continue
            limit, name = RateLimitItemPerMinute(rate), names[kind]
            if not limiter.hit(limit, kind, name, cost=requests):
                left = limiter.get_window_stats(limit, kind, name).reset_time - time.time()
                seconds = min(max(math.ceil(left), 1), 60)
                said = f"this {kind} sent {rate} requests within a minute ({setting}); send the next one in {seconds} s"
                if what:
                    said = (
                        f"this {kind} may send {rate} requests per minute ({setting}), and {what} exceed that now; "
                        f"send it again in {seconds} s"
                    )
                raise Overloaded(said, **{RETRY_AFTER: seconds})


def _names_of(caller: Caller) -> Mapping[str, str]:
    return {"token": caller.token_id, "tenant": caller.tenant_id}
