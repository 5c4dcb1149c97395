"""Routes whose JSON bodies have no key twice; FastAPI's own take the last one."""

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute

from rdukit.strict_json import read_json


class StrictRequest(Request):
    """A request that reads its JSON strictly. FastAPI wraps what is wrong with it: see the cause of its HTTP error."""

    async def json(self) -> Any:
        """Return the body's value.

        Raises:
            InvalidArgument: an object has a key twice.
        """
        return read_json(await self.body())


class StrictRoute(APIRoute):
    """A route of such requests."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """FastAPI's handler, given a strict request."""
        handle = super().get_route_handler()

        async def strictly(request: Request) -> Response:
            return await handle(StrictRequest(request.scope, request.receive, request._send))

        return strictly
