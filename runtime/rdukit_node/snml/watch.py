"""Following the node's events: one task asks the daemon for all watchers together.

Each watcher has its own place in the log and fetches from there on; the shared task only signals news.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Mapping
from typing import Any, Final

from rdukit.errors import NoResources, RdukitError, Unavailable
from rdukit.proto import snml_pb2 as pb
from rdukit_node.snml.messages import as_count, as_text, from_row
from rdukit_node.snml.node_calls import NodeCalls

MAX_WATCHERS: Final = 32
_POLL_S: Final = 0.2
#: While the daemon does not answer.
_RETRY_S: Final = 2.0

Row = Mapping[str, Any]


def event_reply(row: Row) -> pb.WatchEventsReply:
    """Return one event."""
    reply = from_row(
        pb.WatchEventsReply, row, sequence="seq", timestamp="-", comp_name="component", err_uuid="error_uuid"
    )
    time_s = row.get("time")
    reply.timestamp = as_count(time_s * 1e9, 63) if isinstance(time_s, int | float) else 0
    return reply


def missed(row: Row, since: int) -> str | None:
    """Return the notice that events between ``since`` and this one are gone from the log, if they are."""
    first = as_count(row.get("seq"))
    if first <= since + 1:
        return None
    return f"events {since + 1} to {first - 1} are no longer kept"


class EventWatch:
    """The watchers of one server. For tasks of one event loop."""

    def __init__(self, calls: NodeCalls) -> None:
        self._calls: Final = calls
        self._watchers = 0
        self._poller: asyncio.Task[None] | None = None
        self._news: Final = asyncio.Condition()
        #: Newest sequence number that the poller saw.
        self._last = 0
        self._is_stopping = False

    async def follow(
        self, since: int, kinds: set[str], *, only_new: bool, follow: bool
    ) -> AsyncGenerator[pb.WatchEventsReply, None]:
        """Return events after ``since`` of these kinds; without kinds, of all.

        Raises:
            NoResources: there are already ``MAX_WATCHERS`` watchers.
            Unavailable: the daemon does not answer.
        """
        if self._watchers >= MAX_WATCHERS:
            raise NoResources(
                f"{MAX_WATCHERS} callers already watch this node's events; end one, or read without following"
            )
        self._watchers += 1
        try:
            if only_new:
                since = as_count((await self._calls.call("events", since=2**62))["last"])
            while True:
                answer = await self._calls.call("events", since=since)
                if since > as_count(answer.get("last")):
                    # The caller's number belongs to an earlier daemon; this daemon's log began again.
                    since = 0
                    yield pb.WatchEventsReply(
                        error_details=["the node has restarted, so its events count from 1 again"]
                    )
                    continue
                for row in answer["events"]:
                    gap = missed(row, since)
                    since = as_count(row.get("seq"))
                    if gap is None and kinds and as_text(row.get("kind")) not in kinds:
                        continue
                    reply = event_reply(row)
                    reply.error_details.extend([] if gap is None else [gap])
                    yield reply
                if since < as_count(answer.get("last")) and answer["events"]:
                    continue
                if not follow:
                    return
                await self._wait_for_news(since)
        finally:
            self._watchers -= 1
            if not self._watchers and self._poller is not None:
                self._poller.cancel()
                self._poller = None

    async def stop(self) -> None:
        """End all watches, and report to their callers that the node stops."""
        self._is_stopping = True
        async with self._news:
            self._news.notify_all()
        if self._poller is not None:
            self._poller.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._poller
            self._poller = None

    async def _wait_for_news(self, since: int) -> None:
        if self._poller is None or self._poller.done():
            self._last = since
            self._poller = asyncio.create_task(self._poll())
        async with self._news:
            await self._news.wait_for(lambda: self._last > since or self._is_stopping)
        if self._is_stopping:
            raise Unavailable("the node is stopping; watch again when it runs")

    async def _poll(self) -> None:
        while True:
            await asyncio.sleep(_POLL_S)
            try:
                last = as_count((await self._calls.call("events", since=2**62))["last"])
            except RdukitError:
                # Wake the watchers: their own call reports the error.
                last = self._last + 2**62
                await asyncio.sleep(_RETRY_S)
            if last != self._last:
                async with self._news:
                    self._last = last
                    self._news.notify_all()
