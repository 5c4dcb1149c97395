"""Calls of the node daemon's socket from many tasks at once: a few threads, each with a connection of its own."""

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from rdukit.errors import Unavailable
from rdukit.snd import SndClient

logger = logging.getLogger(__name__)

#: Few, because they share the daemon's process with its loop.
WORKERS: Final = 2
#: The daemon answers in milliseconds; longer means that it hangs or is gone.
ANSWER_S: Final = 5.0
#: Rows asked for at once: an answer stays far below the longest line.
PAGE_ROWS: Final = 200


class NodeCalls:
    """The daemon at one socket. ``call`` is for tasks of one event loop."""

    def __init__(self, socket: Path, token: str) -> None:
        self._socket: Final = socket
        self._token: Final = token
        self._threads: Final = ThreadPoolExecutor(WORKERS, thread_name_prefix="snml")
        self._local: Final = threading.local()
        #: Open clients, for ``close``.
        self._clients: Final[set[SndClient]] = set()
        self._lock: Final = threading.Lock()
        self._is_closed = False

    async def call(self, op: str, *, may_repeat: bool = True, **arguments: object) -> dict[str, Any]:
        """Return one request and its answer. Arguments that are ``None`` or empty text are left out.

        ``may_repeat``: if the connection turns out to be broken, ask again on a new one.

        Raises:
            RdukitError: the daemon refused.
            Unavailable: the node does not answer.
        """
        given = {name: value for name, value in arguments.items() if value is not None and value != ""}
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._ask, op, may_repeat, given)

    async def rows(
        self, op: str, key: str, id_name: str, limit: int, **arguments: Any
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Fetch up to ``limit`` rows of a paged list (0: no limit), page by page on demand."""
        after = arguments.pop("after", None)
        sent = 0
        while True:
            wanted = min(PAGE_ROWS, limit - sent) if limit else PAGE_ROWS
            answer = await self.call(op, **{**arguments, "after": after, "limit": wanted})
            page = answer[key]
            for row in page:
                yield row
            sent += len(page)
            if not page or not answer.get("more") or (limit and sent >= limit):
                return
            after = page[-1][id_name]

    def close(self) -> None:
        """Refuse new calls; running ones end within ``ANSWER_S``."""
        with self._lock:
            self._is_closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)

    def close_connections(self) -> None:
        """Close the connections, after ``close``, when no thread uses them any more."""
        self._threads.shutdown(wait=True)
        with self._lock:
            for client in self._clients:
                client.close()
            self._clients.clear()

    def _ask(self, op: str, may_repeat: bool, arguments: dict[str, object]) -> dict[str, Any]:
        is_fresh = getattr(self._local, "client", None) is None
        client = self._connection()
        try:
            return client.call(op, **arguments)
        except Unavailable:
            self._drop(client)
            if is_fresh or not may_repeat:
                raise
        client = self._connection()
        try:
            return client.call(op, **arguments)
        except Unavailable:
            self._drop(client)
            raise

    def _connection(self) -> SndClient:
        client: SndClient | None = getattr(self._local, "client", None)
        if client is not None:
            return client
        with self._lock:
            if self._is_closed:
                raise Unavailable("the node is stopping; reconnect when it runs again")
        client = SndClient(self._socket, ANSWER_S)
        try:
            self._authorize(client)
        except BaseException:
            client.close()
            raise
        with self._lock:
            self._clients.add(client)
        self._local.client = client
        return client

    def _authorize(self, client: SndClient) -> None:
        """Authorize this process's connection as the daemon's own; callers' rights are checked before."""
        hello = client.call("hello")
        if hello.get("admin") is False and "authorize" in hello.get("features", ()):
            client.call("authorize", token=self._token)

    def _drop(self, client: SndClient) -> None:
        self._local.client = None
        with self._lock:
            self._clients.discard(client)
        with contextlib.suppress(OSError):
            client.close()
