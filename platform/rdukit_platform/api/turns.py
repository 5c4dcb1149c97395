"""Turns of a tenant's requests: a bounded number is processed at once, until their answers begin; others wait.

Otherwise a burst of one tenant would precede the next request of another, because threads work first come, first
served.
"""

from typing import Final

import anyio

#: Largest number of concurrent requests of one tenant, or of one stranger's address.
TURNS: Final = 4


class RequestTurn:
    """Turn of one request."""

    def __init__(self, turns: "Turns", owner: str) -> None:
        self._turns, self._owner, self._is_over = turns, owner, False

    def end(self) -> None:
        """End the turn, so that the owner's next request is processed. A second call has no effect."""
        if not self._is_over:
            self._is_over = True
            self._turns.end(self, self._owner)


class Turns:
    """The turns of one process. Belongs to an event loop."""

    def __init__(self) -> None:
        #: Limiters of owners that have requests.
        self._limiters: dict[str, anyio.CapacityLimiter] = {}

    async def take(self, owner: str) -> RequestTurn:
        """Return a turn of the owner's, when there is one."""
        turn, limiter = RequestTurn(self, owner), self._limiters.setdefault(owner, anyio.CapacityLimiter(TURNS))
        try:
            await limiter.acquire_on_behalf_of(turn)
        except BaseException:
            self._tidy(owner)
            raise
        return turn

    def end(self, turn: RequestTurn, owner: str) -> None:
        """Do ``RequestTurn.end``."""
        self._limiters[owner].release_on_behalf_of(turn)
        self._tidy(owner)

    def _tidy(self, owner: str) -> None:
        limiter = self._limiters[owner]
        if not limiter.borrowed_tokens and not limiter.statistics().tasks_waiting:
            del self._limiters[owner]
