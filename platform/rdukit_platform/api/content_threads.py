"""Threads for requests with content of any size, so that other requests need not wait."""

import functools
from collections.abc import Callable, Coroutine
from typing import Any, Final

import anyio
from anyio import to_thread

from rdukit_platform.tenants.service import Caller

#: Largest numbers of concurrent requests, of all tenants and of one. Further ones wait without a thread.
MAX_THREADS: Final = 8
MAX_OF_TENANT: Final = 2


class ContentThreads:
    """The threads of one process. Belongs to an event loop."""

    def __init__(self) -> None:
        self._all: Final = anyio.CapacityLimiter(MAX_THREADS)
        #: Limiters of tenants that have requests.
        self._shares: dict[str, anyio.CapacityLimiter] = {}

    async def run(self, tenant_id: str, work: Callable[[], Any]) -> Any:
        """Run ``work`` in a thread as soon as the limits allow, and return its result."""
        share = self._shares.setdefault(tenant_id, anyio.CapacityLimiter(MAX_OF_TENANT))
        try:
            async with share:
                return await to_thread.run_sync(work, limiter=self._all)
        finally:
            if not share.borrowed_tokens and not share.statistics().tasks_waiting:
                self._shares.pop(tenant_id, None)


def reads_content(endpoint: Callable[..., Any]) -> Callable[..., Coroutine[Any, Any, Any]]:
    """Run a route's endpoint, which has ``request`` and ``caller``, in these threads."""

    @functools.wraps(endpoint)
    async def run(**values: Any) -> Any:
        caller: Caller = values["caller"]
        threads: ContentThreads = values["request"].app.state.platform.content_threads
        return await threads.run(caller.tenant_id, functools.partial(endpoint, **values))

    return run
