"""An operation's events as a server-sent stream."""

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from rdukit.box.sse import KEEP_ALIVE, frame_event, frame_retry
from rdukit_modelbox.operations.values import OperationEvent

#: Silence after which a comment is sent.
KEEP_ALIVE_S: Final = 5.0
#: What browsers wait before they attach again.
RETRY_MS: Final = 500


async def stream_events(events: AsyncIterator[OperationEvent]) -> AsyncIterator[bytes]:
    """Yield each event in its frame, and a comment now and then while there is none."""
    yield frame_retry(RETRY_MS)
    pending = asyncio.ensure_future(anext(events))
    try:
        while True:
            done, _ = await asyncio.wait({pending}, timeout=KEEP_ALIVE_S)
            if not done:
                yield KEEP_ALIVE
                continue
            try:
                event = pending.result()
            except StopAsyncIteration:
                return
            yield frame_event(event.kind, event.sequence, event.to_json())
            pending = asyncio.ensure_future(anext(events))
    finally:
        pending.cancel()
