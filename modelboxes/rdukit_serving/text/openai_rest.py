"""OpenAI-style routes of text models: models, completions, chat completions and embeddings, plain and streamed.

A caller that goes away ends its work. Source: OpenAI's API reference; its event streams are ``data: JSON`` and a blank
line each, then ``data: [DONE]``.
"""

import base64
import struct
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from rdukit.errors import InvalidArgument, NotFound, RdukitError
from rdukit_serving.access import Access
from rdukit_serving.models.served import ServedModels
from rdukit_serving.models.version import ModelVersion
from rdukit_serving.text.chat_template import ChatRenderer, find_chat_template
from rdukit_serving.text.openai_answers import Completion, error_body, server_timing, unless_gone
from rdukit_serving.text.openai_values import ChatBody, CompletionBody, EmbeddingBody, parse_body
from rdukit_serving.text.queue import Embedding

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
        template = find_chat_template(version.files.checkpoint, body.has_tools)
        prompt = await self._renderer.render(template, *body.for_template(template))
        answer = Completion(
            self._models.repository.name, version, body.requests(prompt, template), body.choices, is_chat=True,
            with_logprobs=bool(body.logprobs), new_reader=lambda: body.call_reader(template),
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
    entry: dict[str, object] = {
        "id": models.repository.name,
        "object": "model",
        "created": created,
        "owned_by": "rdukit",
    }
    if found is not None and found.text is not None:
        # A prompt has one token at least.
        entry |= {"context_length": found.text["context"], "max_completion_tokens": found.text["context"] - 1}
    return entry


def _encoded(values: Sequence[float], form: str) -> object:
    return base64.b64encode(struct.pack(f"<{len(values)}f", *values)).decode() if form == "base64" else list(values)
