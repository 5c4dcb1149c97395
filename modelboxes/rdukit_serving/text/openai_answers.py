"""Answers of the OpenAI-style routes, whole and streamed: choices, log-probabilities, usage with rates, errors.

Source: OpenAI's API reference; usage beyond it as the vendor's own client reads it (``sambanova``).
"""

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any, Final, TypeVar

import orjson
from fastapi import Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from rdukit.errors import RdukitError, Unavailable
from rdukit_serving.models.version import ModelVersion
from rdukit_serving.text.queue import Done, GenerationRequest, Piece
from rdukit_serving.text.token_bytes import characters, shown
from rdukit_serving.text.tool_calls import CallReader, ToolCall

_TYPES: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    429: "rate_limit_error",
}
_DONE: Final = b"data: [DONE]\n\n"
#: Before bytes that are no text, where a completion has only text to tell tokens by.
_BYTES: Final = "bytes:"


@dataclass(slots=True)
class Tally:
    """Counts and times of an answer's texts; times are seconds since 1970."""

    began_s: float = field(default_factory=time.time)
    first_s: float | None = None
    prompt_tokens: int = 0
    #: Of these, those that were not read anew.
    cached_tokens: int = 0
    completion_tokens: int = 0
    reason: str = ""

    def note_first(self) -> None:
        """Note when the first token came."""
        if self.first_s is None:
            self.first_s = time.time()

    def count(self, done: Done, is_new_prompt: bool) -> None:
        """Count a text that ended; a prompt is read for each choice but counts once."""
        if is_new_prompt:
            self.prompt_tokens += done.prompt_tokens
            self.cached_tokens += done.cached_tokens
        self.completion_tokens += done.completion_tokens
        self.reason = done.reason

    def usage(self, now_s: float) -> dict[str, object]:
        """Return the usage of an answer that ends now: tokens, seconds and tokens a second."""
        total = self.prompt_tokens + self.completion_tokens
        first_s = now_s if self.first_s is None else self.first_s
        took_s, after_first_s = now_s - self.began_s, now_s - first_s
        return {
            "prompt_tokens": self.prompt_tokens, "completion_tokens": self.completion_tokens, "total_tokens": total,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
            "completion_tokens_details": {"reasoning_tokens": 0},
            "start_time": self.began_s, "end_time": now_s, "time_to_first_token": first_s - self.began_s,
            "total_latency": took_s, "completion_tokens_per_sec": _rate(self.completion_tokens, took_s),
            "completion_tokens_after_first_per_sec": _rate(self.completion_tokens - 1, after_first_s),
            "total_tokens_per_sec": _rate(total, took_s), "stop_reason": self.reason, "is_last_response": True,
        }  # fmt: skip


def _rate(tokens: int, seconds: float) -> float:
    return tokens / seconds if tokens > 0 and seconds > 0 else 0.0


class Completion:
    """Response, whole or streamed: the choices are made one after another."""

    def __init__(
        self, name: str, version: ModelVersion, requests: Sequence[GenerationRequest], choices: int, is_chat: bool,
        with_logprobs: bool, new_reader: Callable[[], CallReader | None] = lambda: None,
    ) -> None:  # fmt: skip
        self._name = name
        #: Of each prompt.
        self._choices = choices
        self._version = version
        self._requests = requests
        self._is_chat = is_chat
        self._with_logprobs = with_logprobs
        #: Gives each text a reader of the calls in it; None where there are no tools.
        self._new_reader = new_reader
        self._id = ("chatcmpl-" if is_chat else "cmpl-") + secrets.token_hex(12)
        self._created = int(time.time())
        self._queue_us = self._compute_us = 0
        self._tally = Tally()

    async def respond(self, request: Request, is_stream: bool, with_usage: bool) -> Response:
        """Respond; a stream's first event is made before the status goes out, so that errors have theirs."""
        if not is_stream:
            answer = await unless_gone(request, self._whole())
            return JSONResponse(answer, headers=server_timing(self._version, self._queue_us, self._compute_us))
        return await stream_response(self._stream(with_usage), lambda error: _frame(error_body(error)))

    async def _whole(self) -> dict[str, object]:
        choices = []
        for index, request in enumerate(self._requests):
            pieces: list[Piece] = []
            text = ""
            async for event in self._version.texts.generate(request):
                text += event.text
                if isinstance(event, Piece):
                    self._tally.note_first()
                    pieces.append(event)
                    continue
                self._tally.count(event, is_new_prompt=not index % self._choices)
                self._queue_us += event.queue_us
                self._compute_us += event.compute_us
                logprobs = self._logprobs(pieces) if self._with_logprobs else None
                content, reason = self._content(text, event.reason)
                choices.append({"index": index, **content, "logprobs": logprobs, "finish_reason": reason})
        kind = "chat.completion" if self._is_chat else "text_completion"
        return {**self._head(kind), "choices": choices, "usage": self._tally.usage(time.time())}

    def _content(self, text: str, reason: str) -> tuple[dict[str, object], str]:
        """Return a whole choice's text or message with its calls, and why it ended."""
        if not self._is_chat:
            return {"text": text}, reason
        message: dict[str, object] = {"role": "assistant", "content": text, "refusal": None}
        reader = self._new_reader()
        if reader is not None:
            said, calls = reader.push(text)
            said += reader.finish()
            if calls:
                message |= {"content": said or None, "tool_calls": [call.body() for call in calls]}
            reason = _reason(reason, calls)
        return {"message": message}, reason

    async def _stream(self, with_usage: bool) -> AsyncGenerator[bytes]:
        kind = "chat.completion.chunk" if self._is_chat else "text_completion"
        head = self._head(kind)
        if with_usage:
            head["usage"] = None
        for index, request in enumerate(self._requests):
            async with contextlib.aclosing(self._version.texts.generate(request)) as events:
                is_first, offset, reader = True, 0, self._new_reader()
                async for event in events:
                    self._tally.note_first()
                    if is_first and self._is_chat:
                        yield _frame({**head, "choices": [self._choice(index, {"role": "assistant", "content": ""})]})
                    is_first = False
                    logprobs = None
                    if self._with_logprobs and isinstance(event, Piece) and event.token is not None:
                        logprobs = self._logprobs([event], offset)
                        offset += characters(event.token)
                    text = event.text
                    calls: list[ToolCall] = []
                    if reader is not None:
                        text, calls = reader.push(text)
                        text += reader.finish() if isinstance(event, Done) else ""
                    if text or logprobs is not None:
                        yield _frame({**head, "choices": [self._choice(index, {"content": text}, logprobs=logprobs)]})
                    for delta in _call_deltas(calls, 0 if reader is None else len(reader.calls)):
                        yield _frame({**head, "choices": [self._choice(index, delta)]})
                    if isinstance(event, Done):
                        self._tally.count(event, is_new_prompt=not index % self._choices)
                        reason = _reason(event.reason, () if reader is None else reader.calls)
                        # OpenAI's has no content here; some clients of the vendor's API read it of each.
                        yield _frame({**head, "choices": [self._choice(index, {"content": ""}, reason)]})
        if with_usage:
            yield _frame({**head, "choices": [], "usage": self._tally.usage(time.time())})
        yield _DONE

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self._id, "object": kind, "created": self._created, "model": self._name}

    def _choice(
        self, index: int, delta: Mapping[str, object], reason: str | None = None, logprobs: object = None
    ) -> dict[str, object]:
        content: dict[str, object] = {"delta": delta} if self._is_chat else {"text": delta.get("content", "")}
        return {"index": index, **content, "logprobs": logprobs, "finish_reason": reason}

    def _logprobs(self, pieces: Sequence[Piece], offset: int = 0) -> dict[str, object]:
        """Return log-probabilities of the pieces that have a token, after ``offset`` characters."""
        tokens = [(piece.token, piece) for piece in pieces if piece.token is not None]
        if self._is_chat:
            return {"content": [token_chances(piece) for _, piece in tokens], "refusal": None}
        lengths = [characters(token) for token, _ in tokens]
        return {
            "tokens": [shown(token, _BYTES) for token, _ in tokens],
            "token_logprobs": [piece.logprob for _, piece in tokens],
            # The chosen token is always among them. Nothing comes before a prompt's first token.
            "top_logprobs": [
                None if piece.logprob is None else _by_text([*piece.top, (token, piece.logprob)])
                for token, piece in tokens
            ],
            "text_offset": list(accumulate(lengths[:-1], initial=offset)) if lengths else [],
        }


def _reason(reason: str, calls: Sequence[ToolCall]) -> str:
    return "tool_calls" if calls and reason == "stop" else reason


def _call_deltas(calls: Sequence[ToolCall], count: int) -> Iterator[dict[str, object]]:
    """Return the pieces in which the newest of ``count`` calls are told: who is called, then with what."""
    for index, call in enumerate(calls, count - len(calls)):
        function = {"name": call.name, "arguments": ""}
        yield {"tool_calls": [{"index": index, "id": call.id, "type": "function", "function": function}]}
        yield {"tool_calls": [{"index": index, "function": {"arguments": call.arguments}}]}


def error_body(error: RdukitError) -> dict[str, object]:
    """Return the error as OpenAI's clients read it."""
    kind = _TYPES.get(error.http_status, "invalid_request_error" if error.http_status < 500 else "server_error")
    code = error.detail.get("openai_code", error.code)
    detail = {"message": error.message, "type": kind, "param": error.detail.get("field"), "code": code}
    return {"error": detail}


def server_timing(version: ModelVersion, queue_us: int, compute_us: int) -> dict[str, str]:
    """Return the header of times; nothing is compiled for a request. Source: W3C Server Timing."""
    value = f"queue;dur={queue_us / 1000:.3f}, compute;dur={compute_us / 1000:.3f}"
    return {"Server-Timing": f"{value}, load;dur={version.load_seconds * 1000:.0f}, compile;dur=0"}


def token_chances(piece: Piece) -> dict[str, object]:
    """Return the probabilities of a piece that has a token, as a chat tells them."""
    chosen = _token(piece.token or b"", piece.logprob)
    return {**chosen, "top_logprobs": [_token(*other) for other in piece.top]}


def _token(token: bytes, logprob: float | None) -> dict[str, object]:
    return {"token": shown(token), "logprob": logprob, "bytes": list(token)}


def _by_text(top: Sequence[tuple[bytes, float]]) -> dict[str, float]:
    """Return log-probabilities by text; of tokens with the same bytes the likeliest stays."""
    found: dict[str, float] = {}
    for token, logprob in top:
        text = shown(token, _BYTES)
        found[text] = max(logprob, found.get(text, logprob))
    return found


def _frame(value: Mapping[str, object]) -> bytes:
    return b"data: " + orjson.dumps(value) + b"\n\n"


async def stream_response(
    events: AsyncGenerator[bytes], last_words: Callable[[RdukitError], bytes], media_type: str = "text/event-stream"
) -> Response:
    """Respond with events as they are made; the first is awaited before the status goes out.

    Args:
        last_words: the event that tells of an error, once the status is out.
    """
    first = await anext(events)
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


async def unless_gone(request: Request, work: Coroutine[Any, Any, Answer]) -> Answer:
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


@dataclass(slots=True)
class Turn:
    """Text of a request that has one, and how its calls are read."""

    version: ModelVersion
    request: GenerationRequest
    reader: CallReader | None = None
    tally: Tally = field(default_factory=Tally)

    async def finish(self, take: Callable[[Piece | ToolCall | Done], object]) -> Done:
        """Give all events to ``take`` and return the last."""
        async for event in self.events():
            take(event)
            if isinstance(event, Done):
                return event
        raise AssertionError("a text has an end")

    async def events(self) -> AsyncGenerator[Piece | ToolCall | Done]:
        """Yield what is said, calls as they become whole, and the end, which has no text of its own.

        Raises:
            RdukitError: as ``TextQueue.generate``.
        """
        async with contextlib.aclosing(self.version.texts.generate(self.request)) as events:
            async for event in events:
                self.tally.note_first()
                text, calls = event.text, list[ToolCall]()
                if self.reader is not None:
                    text, calls = self.reader.push(text)
                    text += self.reader.finish() if isinstance(event, Done) else ""
                if isinstance(event, Piece):
                    if text or event.token is not None:
                        yield replace(event, text=text)
                elif text:
                    yield Piece(text)
                for call in calls:
                    yield call
                if isinstance(event, Done):
                    self.tally.count(event, is_new_prompt=True)
                    reason = _reason(event.reason, () if self.reader is None else self.reader.calls)
                    yield replace(event, text="", reason=reason)
