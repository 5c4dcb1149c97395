"""Work that ends with its client."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from fastapi import Request

Answer = TypeVar("Answer")


class ClientGone(Exception):
    """Nobody waits for the answer any more; the work was cancelled."""


async def while_connected(request: Request, work: Coroutine[Any, Any, Answer]) -> Answer:
    """The result of ``work``, which is cancelled when the client goes away; the request's body must have been read.

    Raises:
        ClientGone: it went.
    """
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_wait_gone(request))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientGone
    finally:
        leaving.cancel()
        if not working.done():
            working.cancel()
            await asyncio.wait({working})


async def _wait_gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
