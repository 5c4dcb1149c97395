"""OpenAI-style routes of text models: models, completions, chat completions and embeddings, plain and streamed.

Source: OpenAI's API reference; its event streams are ``data: JSON`` and a blank line each, then ``data: [DONE]``.
"""

import base64
import contextlib
import secrets
import struct
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

import orjson
from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from rdukit.errors import InvalidArgument, NotFound, RdukitError
from rdukit_modelbox.serving.access import Access
from rdukit_modelbox.serving.box_models import BoxModels
from rdukit_modelbox.serving.chat_template import find_chat_template, render_chat
from rdukit_modelbox.serving.model_version import ModelVersion
from rdukit_modelbox.serving.openai_values import ChatBody, CompletionBody, EmbeddingBody, parse_body
from rdukit_modelbox.serving.text_queue import Done, Piece, TextRequest

_TYPES: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    429: "rate_limit_error",
}
_DONE: Final = b"data: [DONE]\n\n"

Respond = Callable[[Request], Awaitable[Response]]


def make_openai_router(models: BoxModels, access: Access) -> APIRouter:
    """The routes below ``/v1`` that OpenAI's clients call."""
    router = APIRouter(tags=["text"])

    def route(path: str, method: str, body: type[Any] | None, words: str, respond: Respond) -> None:
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
                access.check(request.headers.get("authorization", "").encode("latin-1"))
                return await respond(request)
            except RdukitError as error:
                return JSONResponse(error_body(error), error.http_status)

        router.add_api_route(
            path, answer, methods=[method], summary=words, openapi_extra=extra, response_class=JSONResponse
        )

    async def list_models(request: Request) -> Response:
        return JSONResponse(
            {"object": "list", "data": [_model(models, v) for v in models.repository.ready_versions()][:1]}
        )

    async def get_model(request: Request) -> Response:
        await _find(models, request.path_params["model"])
        return JSONResponse(_model(models, ""))

    async def complete(request: Request) -> Response:
        body = parse_body(CompletionBody, await request.body())
        version = await _text_model(models, body.model)
        answer = _Completion(
            models.repository.name, version, body.requests(), is_chat=False, with_logprobs=body.logprobs is not None
        )
        return await answer.respond(body.stream, bool(body.stream_options and body.stream_options.include_usage))

    async def chat(request: Request) -> Response:
        body = parse_body(ChatBody, await request.body())
        version = await _text_model(models, body.model)
        template = find_chat_template(version.files.checkpoint)
        prompt = render_chat(template, [message.plain() for message in body.messages])
        answer = _Completion(
            models.repository.name, version, body.requests(prompt), is_chat=True, with_logprobs=bool(body.logprobs)
        )
        return await answer.respond(body.stream, bool(body.stream_options and body.stream_options.include_usage))

    async def embed(request: Request) -> Response:
        body = parse_body(EmbeddingBody, await request.body())
        version = await _text_model(models, body.model)
        found = [await version.texts.embed(text) for text in body.inputs()]
        size = len(found[0].values)
        if body.dimensions not in (None, size):
            raise InvalidArgument(f"dimensions: {body.dimensions} is not legal; legal: {size}", field="dimensions")
        data = [
            {"object": "embedding", "index": at, "embedding": _encoded(each.values, body.encoding_format)}
            for at, each in enumerate(found)
        ]
        tokens = sum(each.tokens for each in found)
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return JSONResponse({"object": "list", "data": data, "model": models.repository.name, "usage": usage})

    route("/v1/models", "GET", None, "Models that answer.", list_models)
    route("/v1/models/{model}", "GET", None, "One model.", get_model)
    route("/v1/completions", "POST", CompletionBody, "Continue prompts.", complete)
    route("/v1/chat/completions", "POST", ChatBody, "Answer in a chat.", chat)
    route("/v1/embeddings", "POST", EmbeddingBody, "Texts to vectors.", embed)
    return router


def error_body(error: RdukitError) -> dict[str, object]:
    """The error as OpenAI's clients read it."""
    kind = _TYPES.get(error.http_status, "invalid_request_error" if error.http_status < 500 else "server_error")
    code = error.detail.get("openai_code", error.code)
    detail = {"message": error.message, "type": kind, "param": error.detail.get("field"), "code": code}
    return {"error": detail}


class _Completion:
    """One answer, whole or streamed: the choices are made one after another."""

    def __init__(
        self, name: str, version: ModelVersion, requests: Sequence[TextRequest], is_chat: bool, with_logprobs: bool
    ) -> None:
        self._name = name
        self._version = version
        self._requests = requests
        self._is_chat = is_chat
        self._with_logprobs = with_logprobs
        self._id = ("chatcmpl-" if is_chat else "cmpl-") + secrets.token_hex(12)
        self._created = int(time.time())

    async def respond(self, is_stream: bool, with_usage: bool) -> Response:
        """The response; of a stream, the first event is made before the status goes out, so that errors have theirs."""
        if not is_stream:
            return JSONResponse(await self._whole())
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
                prompt_tokens += event.prompt_tokens
                completion_tokens += event.completion_tokens
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
                is_first = True
                async for event in events:
                    if is_first and self._is_chat:
                        yield _frame({**head, "choices": [self._choice(index, {"role": "assistant", "content": ""})]})
                    is_first = False
                    if event.text or (isinstance(event, Piece) and self._with_logprobs):
                        logprobs = self._logprobs([event]) if isinstance(event, Piece) and self._with_logprobs else None
                        yield _frame(
                            {**head, "choices": [self._choice(index, {"content": event.text}, logprobs=logprobs)]}
                        )
                    if isinstance(event, Done):
                        prompt_tokens += event.prompt_tokens
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

    def _logprobs(self, pieces: Sequence[Piece]) -> dict[str, object]:
        if not self._is_chat:
            return {
                "tokens": [piece.token for piece in pieces],
                "token_logprobs": [piece.logprob for piece in pieces],
                "top_logprobs": [dict(piece.top) for piece in pieces],
                "text_offset": _offsets(pieces),
            }
        return {
            "content": [
                {
                    **_token(piece.token, piece.logprob),
                    "top_logprobs": [_token(text, logprob) for text, logprob in piece.top],
                }
                for piece in pieces
            ],
            "refusal": None,
        }


def _offsets(pieces: Sequence[Piece]) -> list[int]:
    """Where each token's text begins in the text that was made."""
    offsets, at = [], 0
    for piece in pieces:
        offsets.append(at)
        at += len(piece.token)
    return offsets


async def _find(models: BoxModels, name: str) -> ModelVersion:
    model, _, version = name.partition(":")
    try:
        return await models.ensure(model, version)
    except NotFound as error:
        raise NotFound(error.message, field="model", openai_code="model_not_found") from error


async def _text_model(models: BoxModels, name: str) -> ModelVersion:
    version = await _find(models, name)
    if version.text is None:
        raise NotFound(f"model {name!r} makes no text: use /v2/models/{models.repository.name}/infer", field="model")
    return version


def _model(models: BoxModels, version: str) -> dict[str, object]:
    found = models.repository.versions.get(version) or models.repository.current
    created = int(found.loaded_at) if found is not None else 0
    return {"id": models.repository.name, "object": "model", "created": created, "owned_by": "rdukit"}


def _usage(prompt_tokens: int, completion_tokens: int) -> dict[str, int]:
    return {
        "prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }  # fmt: skip


def _token(text: str, logprob: float | None) -> dict[str, object]:
    return {"token": text, "logprob": logprob, "bytes": list(text.encode())}


def _encoded(values: Sequence[float], form: str) -> object:
    return base64.b64encode(struct.pack(f"<{len(values)}f", *values)).decode() if form == "base64" else list(values)


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
