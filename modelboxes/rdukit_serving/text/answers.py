"""Common parts of all APIs' answers: turns, several at once, their counts and times, streams of events."""

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from fastapi import Request
from fastapi.responses import Response, StreamingResponse

from rdukit.errors import RdukitError, Unavailable
from rdukit_serving.models.version import ModelVersion
from rdukit_serving.text.queue import Done, GenerationRequest, Piece, Thought
from rdukit_serving.text.reasoning import AnswerReader
from rdukit_serving.text.tool_calls import ToolCall


@dataclass(slots=True)
class Tally:
    """Counts and times of an answer's texts; times are seconds since 1970."""

    began_s: float = field(default_factory=time.time)
    first_s: float | None = None
    prompt_tokens: int = 0
    #: Prompt tokens that were in the caches.
    cached_tokens: int = 0
    completion_tokens: int = 0
    #: Tokens of thoughts.
    thought_tokens: int = 0
    #: Speculative tokens that were tried, and accepted ones.
    guessed_tokens: int = 0
    accepted_tokens: int = 0
    #: Emulated copies of an expert's weights to where they run: bytes and seconds.
    switch_bytes: int = 0
    switch_s: float = 0.0
    reason: str = ""
    #: Longest wait of a text, and longest time of generating one.
    queue_us: int = 0
    compute_us: int = 0

    def note_first(self) -> None:
        """Record the time of the first token."""
        if self.first_s is None:
            self.first_s = time.time()

    def count(self, done: Done, is_new_prompt: bool) -> None:
        """Count an ended text; a prompt counts once, though each choice reads it."""
        if is_new_prompt:
            self.prompt_tokens += done.prompt_tokens
            self.cached_tokens += done.cached_tokens
        self.completion_tokens += done.completion_tokens
        self.guessed_tokens += done.guessed_tokens
        self.accepted_tokens += done.accepted_tokens
        self.switch_bytes += done.switch_bytes
        self.switch_s += done.switch_s
        self.reason = done.reason
        self.queue_us, self.compute_us = max(self.queue_us, done.queue_us), max(self.compute_us, done.compute_us)

    def usage(self, now_s: float) -> dict[str, object]:
        """Return the usage of an answer that ends now: tokens, seconds and tokens a second."""
        total = self.prompt_tokens + self.completion_tokens
        first_s = now_s if self.first_s is None else self.first_s
        took_s, after_first_s = now_s - self.began_s, now_s - first_s
        return {
            "prompt_tokens": self.prompt_tokens, "completion_tokens": self.completion_tokens, "total_tokens": total,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
            "completion_tokens_details": {"reasoning_tokens": self.thought_tokens},
            "start_time": self.began_s, "end_time": now_s, "time_to_first_token": first_s - self.began_s,
            "total_latency": took_s, "completion_tokens_per_sec": _rate(self.completion_tokens, took_s),
            "completion_tokens_after_first_per_sec": _rate(self.completion_tokens - 1, after_first_s),
            "total_tokens_per_sec": _rate(total, took_s), "stop_reason": self.reason, "is_last_response": True,
            "acceptance_rate": self.accepted_tokens / self.guessed_tokens if self.guessed_tokens else None,
            "emulated_switch": {"bytes": self.switch_bytes, "seconds": self.switch_s},
        }  # fmt: skip


def _rate(tokens: int, seconds: float) -> float:
    return tokens / seconds if tokens > 0 and seconds > 0 else 0.0


#: Step of a turn.
Step = Piece | Thought | ToolCall | Done


@dataclass(slots=True)
class Turn:
    """Text of an answer, its reader of thoughts and calls, and the answer's counts.

    ``first``: another text of the same prompt; this one begins as soon as that prompt has been read.
    """

    version: ModelVersion
    request: GenerationRequest
    reader: AnswerReader | None = None
    tally: Tally = field(default_factory=Tally)
    first: "Turn | None" = None
    _has_begun: asyncio.Event = field(default_factory=asyncio.Event)

    async def finish(self, take: Callable[[Step], object]) -> Done:
        """Pass all events to ``take``, and return the last."""
        async for event in self.events():
            take(event)
            if isinstance(event, Done):
                return event
        raise AssertionError("a text has an end")

    async def events(self) -> AsyncGenerator[Step]:
        """Yield thoughts and text, complete calls, and an end without text.

        Raises:
            RdukitError: as ``TextQueue.generate``.
        """
        if self.first is not None:
            await self.first._has_begun.wait()
        async with contextlib.aclosing(self.version.texts.generate(self.request)) as events:
            async for event in events:
                self.tally.note_first()
                self._has_begun.set()
                thought, text = "", event.text
                calls: Sequence[ToolCall] = ()
                if self.reader is not None:
                    thought, text, calls = self.reader.push(text, isinstance(event, Done))
                if thought:
                    yield Thought(thought)
                if isinstance(event, Piece):
                    if text or event.token is not None:
                        yield replace(event, text=text)
                elif text:
                    yield Piece(text)
                for call in calls:
                    yield call
                if isinstance(event, Done):
                    self.tally.count(event, is_new_prompt=self.first is None)
                    self.tally.thought_tokens += 0 if self.reader is None else self.reader.thought_tokens
                    reason = event.reason
                    if reason == "stop" and self.reader is not None and self.reader.calls:
                        reason = "tool_calls"
                    yield replace(event, text="", reason=reason)


async def make_together(turns: Sequence[Turn]) -> AsyncGenerator[tuple[int, Step]]:
    """Yield the events of several texts of one model as they come, each with the number of its text.

    Texts are requested in order, as many at once as the model generates. An error of one text ends all.
    """
    streams = [turn.events() for turn in turns]
    waiting = iter(enumerate(streams))
    awaited: dict[asyncio.Future[Step | None], int] = {}

    def follow(number: int, stream: AsyncGenerator[Step]) -> None:
        awaited[asyncio.ensure_future(anext(stream, None))] = number

    try:
        for each in itertools.islice(waiting, (turns[0].version.text or {}).get("texts", 1)):
            follow(*each)
        while awaited:
            done, _ = await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
            for future in sorted(done, key=awaited.__getitem__):
                number = awaited.pop(future)
                if (event := future.result()) is not None:
                    yield number, event
                    follow(number, streams[number])
                elif (following := next(waiting, None)) is not None:
                    follow(*following)
    finally:
        for future in awaited:
            future.cancel()
        await asyncio.gather(*awaited, return_exceptions=True)
        for stream in streams:
            await stream.aclose()


def server_timing(version: ModelVersion, queue_us: int, compute_us: int) -> dict[str, str]:
    """Return the header of times; nothing is compiled for a request. Source: W3C Server Timing."""
    value = f"queue;dur={queue_us / 1000:.3f}, compute;dur={compute_us / 1000:.3f}"
    return {"Server-Timing": f"{value}, load;dur={version.load_seconds * 1000:.0f}, compile;dur=0"}


async def stream_response(
    request: Request, events: AsyncGenerator[bytes], last_words: Callable[[RdukitError], bytes],
    media_type: str = "text/event-stream",
) -> Response:  # fmt: skip
    """Respond with events as they occur; the status is sent after the first one.

    Args:
        last_words: event that reports an error after the status was sent.

    Raises:
        RdukitError: it occurred before the first event. Unavailable: the caller went away before it.
    """
    try:
        first = await unless_gone(request, anext(events))
    except BaseException:
        await events.aclose()
        raise
    headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
    return StreamingResponse(_chained(first, events, last_words), media_type=media_type, headers=headers)


async def _chained(
    first: bytes, rest: AsyncGenerator[bytes], last_words: Callable[[RdukitError], bytes]
) -> AsyncIterator[bytes]:
    try:
        yield first
        async for event in rest:
            yield event
    except RdukitError as error:
        yield last_words(error)
    finally:
        await rest.aclose()


#: Seconds between looks at whether the caller is still there.
_LOOK_S: Final = 0.25

Answer = TypeVar("Answer")


async def unless_gone(request: Request, work: Awaitable[Answer]) -> Answer:
    """Return the result of ``work``, which is cancelled when the caller goes away.

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
