"""Work for a caller that may go away before it is done."""

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

from fastapi import Request

from rdukit.errors import Unavailable

#: Seconds between looks at whether the caller is still there.
_LOOK_S: Final = 0.25

Answer = TypeVar("Answer")


async def unless_gone(request: Request, work: Coroutine[Any, Any, Answer]) -> Answer:
    """What ``work`` gives; it is cancelled when the caller goes away.

    Raises:
        Unavailable: the caller went away.
    """
    task = asyncio.ensure_future(work)
    try:
        while not task.done():
            await asyncio.wait({task}, timeout=_LOOK_S)
            if not task.done() and await request.is_disconnected():
                raise Unavailable("the caller went away")
        return task.result()
    finally:
        if not task.done():
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
