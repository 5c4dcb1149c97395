"""OpenAI-style routes of text models: models, completions, chat completions and embeddings, plain and streamed.

A caller that goes away ends its work. Source: OpenAI's API reference; its event streams are ``data: JSON`` and a blank
line each, then ``data: [DONE]``.
"""

import asyncio
import base64
import contextlib
import secrets
import struct
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from itertools import accumulate
from typing import Any, Final, TypeVar

import orjson
from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from rdukit.errors import InvalidArgument, NotFound, RdukitError, Unavailable
from rdukit_serving.access import Access
from rdukit_serving.models.served import ServedModels
from rdukit_serving.models.version import ModelVersion
from rdukit_serving.text.chat_template import ChatRenderer, find_chat_template
from rdukit_serving.text.openai_values import ChatBody, CompletionBody, EmbeddingBody, parse_body
from rdukit_serving.text.queue import Done, Embedding, GenerationRequest, Piece
from rdukit_serving.text.token_bytes import characters, shown

Respond = Callable[[Request], Awaitable[Response]]


def make_openai_router(models: ServedModels, access: Access) -> APIRouter:
    """Return the routes below ``/v1`` that OpenAI's clients call."""
    routes = _Routes(models, access)
    routes.add("/v1/models", "GET", None, "Models that answer.", routes.list_models)
    routes.add("/v1/models/{model}", "GET", None, "One model.", routes.get_model)
    routes.add("/v1/completions", "POST", CompletionBody, "Continue prompts.", routes.complete)
    routes.add("/v1/chat/completions", "POST", ChatBody, "Answer in a chat.", routes.chat)
    routes.add("/v1/embeddings", "POST", EmbeddingBody, "Texts to vectors.", routes.embed)
    return routes.router


class _Routes:
    """Handlers of the routes."""

    def __init__(self, models: ServedModels, access: Access) -> None:
        self.router = APIRouter(tags=["text"])
        self._models = models
        self._access = access
        self._renderer = ChatRenderer()

    def add(self, path: str, method: str, body: type[Any] | None, words: str, respond: Respond) -> None:
        extra: dict[str, Any] = {"responses": {"4XX": {"description": "{error: {message, type, param, code}}"}}}
        if "{model}" in path:
            extra["parameters"] = [{"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}]
        if body is not None:
            place = f"#/paths/{path.replace('/', '~1')}/{method.lower()}/requestBody/content/application~1json/schema"
            schema = body.model_json_schema(ref_template=place + "/$defs/{model}")
            content = {"application/json": {"schema": schema}}
            extra["requestBody"] = {"required": True, "content": content}

        async def answer(request: Request) -> Response:
            try:
                self._access.check(request.headers.get("authorization", "").encode("latin-1"))
                return await respond(request)
            except RdukitError as error:
                return JSONResponse(error_body(error), error.http_status)

        self.router.add_api_route(
            path, answer, methods=[method], summary=words, openapi_extra=extra, response_class=JSONResponse
        )

    async def list_models(self, request: Request) -> Response:
        """List the one model that is served."""
        return JSONResponse(
            {"object": "list", "data": [_model(self._models, v) for v in self._models.repository.ready_versions()][:1]}
        )

    async def get_model(self, request: Request) -> Response:
        """Describe the model if it has that name."""
        await _find(self._models, request.path_params["model"])
        return JSONResponse(_model(self._models, ""))

    async def complete(self, request: Request) -> Response:
        """Complete prompts."""
        body = parse_body(CompletionBody, await request.body())
        version = await _text_model(self._models, body.model)
        answer = Completion(
            self._models.repository.name, version, body.requests(), body.choices, is_chat=False,
            with_logprobs=body.logprobs is not None,
        )  # fmt: skip
        return await answer.respond(request, body.stream, body.wants_usage())

    async def chat(self, request: Request) -> Response:
        """Write the next message of a chat."""
        body = parse_body(ChatBody, await request.body())
        version = await _text_model(self._models, body.model)
        template = find_chat_template(version.files.checkpoint)
        prompt = await self._renderer.render(template, [message.plain() for message in body.messages])
        answer = Completion(
            self._models.repository.name, version, body.requests(prompt), body.choices, is_chat=True,
            with_logprobs=bool(body.logprobs),
        )  # fmt: skip
        return await answer.respond(request, body.stream, body.wants_usage())

    async def embed(self, request: Request) -> Response:
        """Embed each text as a vector."""
        body = parse_body(EmbeddingBody, await request.body())
        version = await _text_model(self._models, body.model)
        found = await unless_gone(request, _embed_all(version, body.inputs()))
        size = len(found[0].values)
        if body.dimensions not in (None, size):
            raise InvalidArgument(f"dimensions: {body.dimensions} is not legal; legal: {size}", field="dimensions")
        data = [
            {"object": "embedding", "index": at, "embedding": _encoded(each.values, body.encoding_format)}
            for at, each in enumerate(found)
        ]
        tokens = sum(each.tokens for each in found)
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        answer = {"object": "list", "data": data, "model": self._models.repository.name, "usage": usage}
        queue_us, compute_us = sum(each.queue_us for each in found), sum(each.compute_us for each in found)
        return JSONResponse(answer, headers=server_timing(version, queue_us, compute_us))


async def _embed_all(version: ModelVersion, texts: Sequence[str | list[int]]) -> list[Embedding]:
    return [await version.texts.embed(text) for text in texts]


async def _find(models: ServedModels, name: str) -> ModelVersion:
    model, _, version = name.partition(":")
    try:
        return await models.ensure(model, version)
    except NotFound as error:
        raise NotFound(error.message, field="model", openai_code="model_not_found") from error


async def _text_model(models: ServedModels, name: str) -> ModelVersion:
    version = await _find(models, name)
    if version.text is None:
        raise NotFound(f"model {name!r} makes no text: use /v2/models/{models.repository.name}/infer", field="model")
    return version


def _model(models: ServedModels, version: str) -> dict[str, object]:
    found = models.repository.versions.get(version) or models.repository.current
    created = int(found.loaded_at) if found is not None else 0
    return {"id": models.repository.name, "object": "model", "created": created, "owned_by": "rdukit"}


def _encoded(values: Sequence[float], form: str) -> object:
    return base64.b64encode(struct.pack(f"<{len(values)}f", *values)).decode() if form == "base64" else list(values)


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
    """Response, whole or streamed: the choices are made one after another."""

    def __init__(
        self, name: str, version: ModelVersion, requests: Sequence[GenerationRequest], choices: int, is_chat: bool,
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
        """Respond; a stream's first event is made before the status goes out, so that errors have theirs."""
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
                is_first, offset = True, 0
                async for event in events:
                    if is_first and self._is_chat:
                        yield _frame({**head, "choices": [self._choice(index, {"role": "assistant", "content": ""})]})
                    is_first = False
                    logprobs = None
                    if self._with_logprobs and isinstance(event, Piece) and event.token is not None:
                        logprobs = self._logprobs([event], offset)
                        offset += characters(event.token)
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

    def _logprobs(self, pieces: Sequence[Piece], offset: int = 0) -> dict[str, object]:
        """Return log-probabilities of the pieces that have a token, after ``offset`` characters."""
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
            "text_offset": list(accumulate(lengths[:-1], initial=offset)) if lengths else [],
        }


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


def _usage(prompt_tokens: int, completion_tokens: int) -> dict[str, int]:
    return {
        "prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }  # fmt: skip


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
