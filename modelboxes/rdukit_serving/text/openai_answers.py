"""Answers of the OpenAI-style routes, whole and streamed: choices, log-probabilities, usage with rates, errors.

Source: OpenAI's API reference; further usage fields that the vendor's own client (``sambanova``) reads.
"""

import contextlib
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Final

import orjson
from fastapi import Request
from fastapi.responses import JSONResponse, Response

from rdukit.errors import RdukitError
from rdukit_serving.models.version import ModelVersion
from rdukit_serving.text.answers import Step, Tally, Turn, make_together, server_timing, stream_response, unless_gone
from rdukit_serving.text.older_functions import function_call_deltas, function_call_of
from rdukit_serving.text.queue import Done, GenerationRequest, Piece, Thought
from rdukit_serving.text.reasoning import AnswerReader
from rdukit_serving.text.token_bytes import characters, shown
from rdukit_serving.text.tool_calls import ToolCall

_TYPES: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    429: "rate_limit_error",
}
_DONE: Final = b"data: [DONE]\n\n"
#: Prefix of bytes that are not text, in completions, which show tokens only as text.
_BYTES: Final = "bytes:"


@dataclass(slots=True)
class _Choice:
    """Choice so far: thoughts, text, tokens with their probabilities, calls, and reason of the end."""

    text: str = ""
    thought: str = ""
    pieces: list[Piece] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)
    reason: str = ""

    def take(self, event: Step) -> None:
        """Process a step of the text."""
        match event:
            case Piece():
                self.text += event.text
                self.pieces.append(event)
            case Thought():
                self.thought += event.text
            case ToolCall():
                self.calls.append(event)
            case Done():
                self.reason = event.reason


class Completion:
    """Response, complete or streamed; its choices are generated concurrently.

    ``choices``: of each prompt. ``new_reader`` creates a reader of thoughts and calls for each text; None: there are
    neither. ``with_functions``: a call has the older form ``function_call``.
    """

    def __init__(
        self, name: str, version: ModelVersion, requests: Sequence[GenerationRequest], choices: int, is_chat: bool,
        with_logprobs: bool, new_reader: Callable[[], AnswerReader | None] = lambda: None,
        with_functions: bool = False,
    ) -> None:  # fmt: skip
        self._name = name
        self._version = version
        self._tally = Tally()
        self._turns: list[Turn] = []
        for index, request in enumerate(requests):
            first = self._turns[index - index % choices] if index % choices else None
            self._turns.append(Turn(version, request, new_reader(), self._tally, first))
        self._is_chat = is_chat
        self._with_logprobs = with_logprobs
        self._with_functions = with_functions
        self._id = ("chatcmpl-" if is_chat else "cmpl-") + secrets.token_hex(12)
        self._created = int(time.time())

    async def respond(self, request: Request, is_stream: bool, with_usage: bool) -> Response:
        """Respond. A stream's first event precedes the status, so that an error sets its own status."""
        if not is_stream:
            answer = await unless_gone(request, self._whole())
            return JSONResponse(
                answer, headers=server_timing(self._version, self._tally.queue_us, self._tally.compute_us)
            )
        return await stream_response(request, self._stream(with_usage), lambda error: _frame(error_body(error)))

    async def _whole(self) -> dict[str, object]:
        made = [_Choice() for _ in self._turns]
        async for index, event in make_together(self._turns):
            made[index].take(event)
        choices = [
            {
                "index": index, **self._content(choice),
                "logprobs": self._logprobs(choice.pieces) if self._with_logprobs else None,
                "finish_reason": self._reason(choice.reason),
            }
            for index, choice in enumerate(made)
        ]  # fmt: skip
        kind = "chat.completion" if self._is_chat else "text_completion"
        return {**self._head(kind), "choices": choices, "usage": self._tally.usage(time.time())}

    def _content(self, choice: _Choice) -> dict[str, object]:
        """Return a choice's complete text, or message with its calls."""
        if not self._is_chat:
            return {"text": choice.text}
        message: dict[str, object] = {"role": "assistant", "content": choice.text, "refusal": None}
        if choice.calls:
            calls: dict[str, object] = {"tool_calls": [call.body() for call in choice.calls]}
            if self._with_functions:
                calls = {"function_call": function_call_of(choice.calls[0])}
            message |= {"content": choice.text or None, **calls}
        if choice.thought:
            message["reasoning_content"] = choice.thought
        return {"message": message}

    async def _stream(self, with_usage: bool) -> AsyncGenerator[bytes]:
        kind = "chat.completion.chunk" if self._is_chat else "text_completion"
        head = self._head(kind)
        if with_usage:
            head["usage"] = None
        #: By text: number of characters with reported probabilities, and number of calls; missing before its begin.
        sent: dict[int, list[int]] = {}
        async with contextlib.aclosing(make_together(self._turns)) as events:
            async for index, event in events:
                if index not in sent:
                    sent[index] = [0, 0]
                    if self._is_chat:
                        yield _frame({**head, "choices": [self._choice(index, {"role": "assistant", "content": ""})]})
                match event:
                    case Piece():
                        logprobs = None
                        if self._with_logprobs and event.token is not None:
                            logprobs = self._logprobs([event], sent[index][0])
                            sent[index][0] += characters(event.token)
                        choices = [self._choice(index, {"content": event.text}, logprobs=logprobs)]
                        yield _frame({**head, "choices": choices})
                    case Thought():
                        yield _frame({**head, "choices": [self._choice(index, {"reasoning_content": event.text})]})
                    case ToolCall():
                        older = self._with_functions
                        for delta in function_call_deltas(event) if older else _call_deltas(event, sent[index][1]):
                            yield _frame({**head, "choices": [self._choice(index, delta)]})
                        sent[index][1] += 1
                    case Done():
                        # OpenAI's has no content here; some clients of the vendor's API read it of each.
                        yield _frame(
                            {**head, "choices": [self._choice(index, {"content": ""}, self._reason(event.reason))]}
                        )
        if with_usage:
            yield _frame({**head, "choices": [], "usage": self._tally.usage(time.time())})
        yield _DONE

    def _reason(self, reason: str) -> str:
        return "function_call" if reason == "tool_calls" and self._with_functions else reason

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
            # The chosen token is always among them. A prompt's first token has no probabilities.
            "top_logprobs": [
                None if piece.logprob is None else _by_text([*piece.top, (token, piece.logprob)])
                for token, piece in tokens
            ],
            "text_offset": list(accumulate(lengths[:-1], initial=offset)) if lengths else [],
        }


def _call_deltas(call: ToolCall, index: int) -> Iterator[dict[str, object]]:
    """Return the pieces of a call for a stream: first the function, then the arguments."""
    function = {"name": call.name, "arguments": ""}
    yield {"tool_calls": [{"index": index, "id": call.id, "type": "function", "function": function}]}
    yield {"tool_calls": [{"index": index, "function": {"arguments": call.arguments}}]}


def error_body(error: RdukitError) -> dict[str, object]:
    """Return the error as OpenAI's clients read it."""
    kind = _TYPES.get(error.http_status, "invalid_request_error" if error.http_status < 500 else "server_error")
    code = error.detail.get("openai_code", error.code)
    detail = {"message": error.message, "type": kind, "param": error.detail.get("field"), "code": code}
    return {"error": detail}


def token_chances(piece: Piece) -> dict[str, object]:
    """Return the probabilities of a piece with a token, in the form of a chat."""
    chosen = _token(piece.token or b"", piece.logprob)
    return {**chosen, "top_logprobs": [_token(*other) for other in piece.top]}


def _token(token: bytes, logprob: float | None) -> dict[str, object]:
    return {"token": shown(token), "logprob": logprob, "bytes": list(token)}


def _by_text(top: Sequence[tuple[bytes, float]]) -> dict[str, float]:
    """Return log-probabilities by text; of tokens with equal bytes, the likeliest stays."""
    found: dict[str, float] = {}
    for token, logprob in top:
        text = shown(token, _BYTES)
        found[text] = max(logprob, found.get(text, logprob))
    return found


def _frame(value: Mapping[str, object]) -> bytes:
    return b"data: " + orjson.dumps(value) + b"\n\n"
