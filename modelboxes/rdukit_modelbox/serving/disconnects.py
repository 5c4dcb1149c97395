"""Callers that go away while their request waits: it is taken back.

To listen costs a task, so only requests that have waited for a while are listened to.
"""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

#: Seconds between two looks at what waits.
LOOK_S: Final = 0.05

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


class Disconnects:
    """Requests under way. Belongs to one event loop."""

    def __init__(self) -> None:
        #: Requests since the last look, and those that were there at that look.
        self._new: list[tuple[asyncio.Future[Any], Receive]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._listening: set[asyncio.Task[None]] = set()

    def watch(self, future: "asyncio.Future[Any]", receive: Receive) -> None:
        """Cancel ``future`` when the caller of ``receive`` goes away."""
        self._new.append((future, receive))
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._look)

    def _look(self) -> None:
        self._timer = None
        waiting, self._new = self._new, []
        for future, receive in waiting:
            if not future.done():
                task = asyncio.create_task(_listen(future, receive))
                self._listening.add(task)
                task.add_done_callback(self._listening.discard)


async def _listen(future: "asyncio.Future[Any]", receive: Receive) -> None:
    leaving = asyncio.ensure_future(receive())
    await asyncio.wait({leaving, future}, return_when=asyncio.FIRST_COMPLETED)
    if leaving.done() and leaving.exception() is None and leaving.result()["type"] == "http.disconnect":
        future.cancel()
    leaving.cancel()
