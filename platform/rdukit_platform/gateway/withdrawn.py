"""Running requests and streams end when their caller's token is blocked or revoked.

A token is checked before its request, and here again during the request. Expiry alone ends no running request.
"""

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from anyio import to_thread
from sqlalchemy.exc import DBAPIError
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rdukit.errors import Unauthenticated
from rdukit_platform.api.context import Platform
from rdukit_platform.gateway.middleware import error_response
from rdukit_platform.tenants.service import Caller, find_withdrawn

logger = logging.getLogger(__name__)

#: Seconds between checks of the tokens of running requests; shorter requests are not checked again.
LOOK_S: Final = 2.0


@dataclass(slots=True)
class _UnderWay:
    """A running request: its start, and the function that ends it."""

    scope: Scope
    began: float
    limit: asyncio.Timeout

    @property
    def token_id(self) -> str | None:
        caller: Caller | None = self.scope.get("state", {}).get("caller")
        return None if caller is None else caller.token_id


class WithdrawnMiddleware:
    """Ends the requests of withdrawn tokens. An answer that has begun is cut off; the others get a 401."""

    def __init__(self, app: ASGIApp, platform: Platform) -> None:
        self._app, self._platform = app, platform
        self._requests: dict[int, _UnderWay] = {}
        #: Task that checks tokens while there are requests.
        self._watch: asyncio.Task[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        has_begun = False

        async def answer(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        limit = asyncio.timeout(None)
        try:
            async with limit:
                self._requests[id(limit)] = _UnderWay(scope, asyncio.get_running_loop().time(), limit)
                if self._watch is None or self._watch.done():
                    self._watch = asyncio.create_task(self._look())
                try:
                    await self._app(scope, receive, answer)
                finally:
                    del self._requests[id(limit)]
        except TimeoutError:
            if not limit.expired():
                raise
            if not has_begun:
                words = "the token was blocked or revoked while its request was under way"
                refusal = await to_thread.run_sync(error_response, Request(scope), Unauthenticated(words))
                await refusal(scope, receive, send)

    async def _look(self) -> None:
        clock = asyncio.get_running_loop().time
        while self._requests:
            await asyncio.sleep(LOOK_S)
            old = [each for each in self._requests.values() if clock() - each.began >= LOOK_S and each.token_id]
            tokens = {str(each.token_id) for each in old}
            withdrawn = set[str]()
            with suppress(DBAPIError):  # looked at again
                withdrawn = await to_thread.run_sync(self._find, tokens) if tokens else withdrawn
            for each in old:
                if each.token_id in withdrawn and id(each.limit) in self._requests and not each.limit.expired():
                    logger.info("request ends, its token was withdrawn token=%s", each.token_id)
                    each.limit.reschedule(clock())

    def _find(self, token_ids: set[str]) -> set[str]:
        with self._platform.database.read() as session:
            return find_withdrawn(session, token_ids, self._platform.clock.now())
