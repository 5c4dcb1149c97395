"""Following a job: events and log lines as they come, until the job has ended and all has been told."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Final

import anyio
import orjson

from rdukit_platform.context import Platform
from rdukit_platform.db.models import JobEventRow
from rdukit_platform.jobs.service import get_job, list_events
from rdukit_platform.jobs.states import FINAL, JobState
from rdukit_platform.jobs.view import show_event
from rdukit_platform.tenants.service import Caller, is_token_valid

#: A comment line this often keeps proxies from closing a quiet stream.
KEEP_ALIVE_S: Final = 10.0


async def follow_events(
    platform: Platform, caller: Caller, job_id: str, after: int, kind: str | None = None
) -> AsyncGenerator[list[JobEventRow]]:
    """Batches of events after a sequence number, empty ones while nothing happens; ends after the final state.

    It ends with the caller's token too.
    """

    def look() -> tuple[list[JobEventRow], bool]:
        with platform.database.read() as session:
            if not is_token_valid(session, caller.token_id, platform.clock.now()):
                return [], True
            # The state is read first: events written with it are then seen as well.
            has_ended = JobState(get_job(session, caller.tenant_id, job_id).state) in FINAL
            return list(list_events(session, job_id, after, kind=kind)), has_ended

    followers = platform.followers
    with followers.following(caller.tenant_id):
        while True:
            events, has_ended = await anyio.to_thread.run_sync(look, limiter=followers.looks)
            if events:
                after = events[-1].id
            yield events
            if has_ended and not events:
                return
            if not has_ended:
                await anyio.sleep(followers.pause_s(caller.tenant_id))


async def stream_events(platform: Platform, caller: Caller, job_id: str, after: int) -> AsyncIterator[bytes]:
    """Server-sent events: ``event`` is the kind, ``id`` the sequence number, ``data`` the event as JSON."""
    said_at = anyio.current_time()
    async with aclosing(follow_events(platform, caller, job_id, after)) as batches:
        async for batch in batches:
            for row in batch:
                data = orjson.dumps(show_event(row).model_dump())
                yield f"event: {row.kind}\nid: {row.id}\n".encode() + b"data: " + data + b"\n\n"
            if batch or anyio.current_time() - said_at >= KEEP_ALIVE_S:
                said_at = anyio.current_time()
                if not batch:
                    yield b": still here\n\n"


async def stream_logs(platform: Platform, caller: Caller, job_id: str) -> AsyncIterator[bytes]:
    """Log lines as text."""
    async with aclosing(follow_events(platform, caller, job_id, 0, kind="log")) as batches:
        async for batch in batches:
            for row in batch:
                yield log_line(row)


def log_line(row: JobEventRow) -> bytes:
    """A log event as a line of text."""
    return f"{row.data.get('line', '')}\n".encode()
