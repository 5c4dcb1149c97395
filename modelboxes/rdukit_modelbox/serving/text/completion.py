"""Completions and chat completions as OpenAI's clients read them: whole, or as an event stream.

Source: OpenAI's API reference; its event streams are ``data: JSON`` and a blank line each, then ``data: [DONE]``.
"""

import contextlib
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, Final

import orjson
from fastapi import Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from rdukit.errors import RdukitError
from rdukit_modelbox.serving.model_version import ModelVersion
from rdukit_modelbox.serving.text.callers import unless_gone
from rdukit_modelbox.serving.text.queue import Done, Piece, TextRequest
from rdukit_modelbox.serving.text.token_bytes import characters, shown

_TYPES: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    429: "rate_limit_error",
}
_DONE: Final = b"data: [DONE]\n\n"
#: Before bytes that are no text, where a completion has only text to tell tokens by.
_BYTES: Final = "bytes:"


class Completion:
    """One answer, whole or streamed: the choices are made one after another."""

    def __init__(
        self, name: str, version: ModelVersion, requests: Sequence[TextRequest], choices: int, is_chat: bool,
        with_logprobs: bool,
    ) -> None:  # fmt: skip
        self._name = name
        #: Of each prompt.
        self._choices = choices
        self._version = version
        self._requests = requests
        self._is_chat = is_chat
        self._with_logprobs = with_logprobs
        self._id = ("chatcmpl-" if is_chat else "cmpl-") + secrets.token_hex(12)
        self._created = int(time.time())
        self._queue_us = self._compute_us = 0

    async def respond(self, request: Request, is_stream: bool, with_usage: bool) -> Response:
        """The response; of a stream, the first event is made before the status goes out, so that errors have theirs."""
        if not is_stream:
            answer = await unless_gone(request, self._whole())
            return JSONResponse(answer, headers=server_timing(self._version, self._queue_us, self._compute_us))
        events = self._stream(with_usage)
        first = await anext(events)
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        return StreamingResponse(_chained(first, events), media_type="text/event-stream", headers=headers)

    async def _whole(self) -> dict[str, object]:
        choices, prompt_tokens, completion_tokens = [], 0, 0
        for index, request in enumerate(self._requests):
            pieces: list[Piece] = []
            text = ""
            async for event in self._version.texts.generate(request):
                text += event.text
                if isinstance(event, Piece):
                    pieces.append(event)
                    continue
                # A prompt is read for each choice but counts once.
                prompt_tokens += 0 if index % self._choices else event.prompt_tokens
                completion_tokens += event.completion_tokens
                self._queue_us += event.queue_us
                self._compute_us += event.compute_us
                logprobs = self._logprobs(pieces) if self._with_logprobs else None
                content = (
                    {"message": {"role": "assistant", "content": text, "refusal": None}}
                    if self._is_chat
                    else {"text": text}
                )
                choices.append({"index": index, **content, "logprobs": logprobs, "finish_reason": event.reason})
        kind = "chat.completion" if self._is_chat else "text_completion"
        return {**self._head(kind), "choices": choices, "usage": _usage(prompt_tokens, completion_tokens)}

    async def _stream(self, with_usage: bool) -> AsyncGenerator[bytes]:
        kind = "chat.completion.chunk" if self._is_chat else "text_completion"
        head = self._head(kind)
        if with_usage:
            head["usage"] = None
        prompt_tokens = completion_tokens = 0
        for index, request in enumerate(self._requests):
            async with contextlib.aclosing(self._version.texts.generate(request)) as events:
                is_first, told = True, 0
                async for event in events:
                    if is_first and self._is_chat:
                        yield _frame({**head, "choices": [self._choice(index, {"role": "assistant", "content": ""})]})
                    is_first = False
                    logprobs = None
                    if self._with_logprobs and isinstance(event, Piece) and event.token is not None:
                        logprobs = self._logprobs([event], told)
                        told += characters(event.token)
                    if event.text or logprobs is not None:
                        yield _frame(
                            {**head, "choices": [self._choice(index, {"content": event.text}, logprobs=logprobs)]}
                        )
                    if isinstance(event, Done):
                        prompt_tokens += 0 if index % self._choices else event.prompt_tokens
                        completion_tokens += event.completion_tokens
                        yield _frame({**head, "choices": [self._choice(index, {}, event.reason)]})
        if with_usage:
            yield _frame({**head, "choices": [], "usage": _usage(prompt_tokens, completion_tokens)})
        yield _DONE

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self._id, "object": kind, "created": self._created, "model": self._name}

    def _choice(
        self, index: int, delta: Mapping[str, object], reason: str | None = None, logprobs: object = None
    ) -> dict[str, object]:
        content: dict[str, object] = {"delta": delta} if self._is_chat else {"text": delta.get("content", "")}
        return {"index": index, **content, "logprobs": logprobs, "finish_reason": reason}

    def _logprobs(self, pieces: Sequence[Piece], told: int = 0) -> dict[str, object]:
        """Of the pieces that have a token; ``told`` characters were told before."""
        tokens = [(piece.token, piece) for piece in pieces if piece.token is not None]
        if self._is_chat:
            content = [
                {**_token(token, piece.logprob), "top_logprobs": [_token(*other) for other in piece.top]}
                for token, piece in tokens
            ]
            return {"content": content, "refusal": None}
        lengths = [characters(token) for token, _ in tokens]
        return {
            "tokens": [shown(token, _BYTES) for token, _ in tokens],
            "token_logprobs": [piece.logprob for _, piece in tokens],
            # The chosen token is always among them. Nothing comes before a prompt's first token.
            "top_logprobs": [
                None if piece.logprob is None else _by_text([*piece.top, (token, piece.logprob)])
                for token, piece in tokens
            ],
            "text_offset": list(accumulate(lengths[:-1], initial=told)) if lengths else [],
        }


def error_body(error: RdukitError) -> dict[str, object]:
    """The error as OpenAI's clients read it."""
    kind = _TYPES.get(error.http_status, "invalid_request_error" if error.http_status < 500 else "server_error")
    code = error.detail.get("openai_code", error.code)
    detail = {"message": error.message, "type": kind, "param": error.detail.get("field"), "code": code}
    return {"error": detail}


def server_timing(version: ModelVersion, queue_us: int, compute_us: int) -> dict[str, str]:
    """As of other inferences; nothing is compiled for a request. Source: W3C Server Timing."""
    value = f"queue;dur={queue_us / 1000:.3f}, compute;dur={compute_us / 1000:.3f}"
    return {"Server-Timing": f"{value}, load;dur={version.load_seconds * 1000:.0f}, compile;dur=0"}


def _usage(prompt_tokens: int, completion_tokens: int) -> dict[str, int]:
    return {
        "prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }  # fmt: skip


def _token(token: bytes, logprob: float | None) -> dict[str, object]:
    return {"token": shown(token), "logprob": logprob, "bytes": list(token)}


def _by_text(top: Sequence[tuple[bytes, float]]) -> dict[str, float]:
    """Log-probabilities by text; of tokens with the same bytes, which some vocabularies have, the likeliest stays."""
    found: dict[str, float] = {}
    for token, logprob in top:
        text = shown(token, _BYTES)
        found[text] = max(logprob, found.get(text, logprob))
    return found


def _frame(value: Mapping[str, object]) -> bytes:
    return b"data: " + orjson.dumps(value) + b"\n\n"


async def _chained(first: bytes, rest: AsyncGenerator[bytes]) -> AsyncIterator[bytes]:
    try:
        yield first
        async for event in rest:
            yield event
    except RdukitError as error:
        # The status is out: the error goes into the stream, as OpenAI's clients expect it.
        yield _frame(error_body(error))
    finally:
        await rest.aclose()
