"""Routes of text models: OpenAI's, Anthropic's messages, SambaStudio's generic API; plain and streamed.

A caller that goes away ends its work. Source: the APIs' references; OpenAI's event streams are ``data: JSON`` and a
blank line each, then ``data: [DONE]``.
"""

import base64
import struct
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, TypeVar

import numpy as np
import orjson
from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from numpy.typing import NDArray

from rdukit.errors import InvalidArgument, NotFound, RdukitError
from rdukit_serving.access import Access
from rdukit_serving.models.served import ServedModels
from rdukit_serving.models.version import ModelVersion
from rdukit_serving.rest.web import request_id_of
from rdukit_serving.router.word_vectors import EXPERT_HEADER, MAX_CHARACTERS, routed_text
from rdukit_serving.speech.rest import FORM, SpeechAnswers, TranscriptionBody, TranslationBody
from rdukit_serving.text.answers import Turn, server_timing, unless_gone
from rdukit_serving.text.anthropic_messages import CountBody, MessageAnswer, MessagesBody, messages_error
from rdukit_serving.text.chat_template import (
    ChatRenderer,
    ChatTemplate,
    find_chat_template,
)
from rdukit_serving.text.openai_answers import Completion, error_body
from rdukit_serving.text.openai_responses import ResponseAnswer, ResponseBody
from rdukit_serving.text.openai_values import ChatBody, CompletionBody, EmbeddingBody, read_body
from rdukit_serving.text.queue import Embedding, GenerationRequest
from rdukit_serving.text.reasoning import find_thinking
from rdukit_serving.text.short_vectors import check_dimensions, shorten
from rdukit_serving.text.studio_generic import (
    GenericAnswer,
    InstancesBody,
    ItemsBody,
    read_chat,
    studio_error,
)

Respond = Callable[[Request], Awaitable[Response]]
#: Bodies whose model may be the router.
Named = TypeVar("Named", CompletionBody, ChatBody, ResponseBody, MessagesBody, CountBody)


@dataclass(frozen=True, slots=True)
class TextApi:
    """Ways that the routes of an API have in common.

    ``form`` describes an error in its documentation; ``key_header`` may have the token in place of ``authorization``;
    ``id_header`` has an answer's identifier, as the API's clients read it; ``fields`` are its names of a chat's fields.
    """

    error: Callable[[RdukitError], dict[str, object]]
    form: str
    key_header: str = ""
    id_header: str = "x-request-id"
    fields: Mapping[str, str] = field(default_factory=dict)

    def token(self, headers: Mapping[str, str]) -> bytes:
        """Return the token of a request as the header ``authorization`` has it."""
        key = headers.get(self.key_header, "") if self.key_header else ""
        return (headers.get("authorization") or (f"Bearer {key}" if key else "")).encode("latin-1")

    def refuse(self, error: RdukitError) -> Response:
        """Respond with an error, which names the field as this API does."""
        own = self.fields.get(str(error.detail.get("field")))
        if own is not None:
            words = error.message.removeprefix(f"{error.detail['field']}: ")
            message = error.message if words == error.message else f"{own}: {words}"
            error = type(error)(message, **{**error.detail, "field": own})
        seconds = error.detail.get("retry_after_s")
        headers = {} if seconds is None else {"Retry-After": str(seconds)}
        return JSONResponse(self.error(error), error.http_status, headers)


OPENAI: Final = TextApi(error_body, "{error: {message, type, param, code}}")
RESPONSES: Final = replace(OPENAI, fields={"messages": "input", "response_format": "text.format"})
MESSAGES: Final = TextApi(
    messages_error, "{type: error, error: {type, message}}", "x-api-key", "request-id",
    {"response_format": "output_config.format", "max_completion_tokens": "max_tokens"},
)  # fmt: skip
STUDIO: Final = TextApi(
    studio_error, "{error: {code, message, details}}", "key", fields={"messages": "items"}
)  # fmt: skip


def make_text_router(models: ServedModels, access: Access) -> APIRouter:
    """Return the routes that clients of text models call."""
    routes = _Routes(models, access)
    routes.add("/v1/models", "GET", None, "Models that answer.", routes.list_models)
    routes.add("/v1/models/{model:path}", "GET", None, "One model.", routes.get_model)
    routes.add("/v1/completions", "POST", CompletionBody, "Continue prompts.", routes.complete)
    routes.add("/v1/chat/completions", "POST", ChatBody, "Answer in a chat.", routes.chat)
    routes.add("/v1/embeddings", "POST", EmbeddingBody, "Texts to vectors.", routes.embed)
    routes.add("/v1/responses", "POST", ResponseBody, "Answer with items.", routes.answer_responses, RESPONSES)
    routes.add("/v1/messages", "POST", MessagesBody, "Answer with blocks.", routes.answer_messages, MESSAGES)
    routes.add("/v1/messages/count_tokens", "POST", CountBody, "Count tokens.", routes.count_tokens, MESSAGES)
    speech = SpeechAnswers(partial(_find, models))
    for path, kind, words, respond in (
        ("transcriptions", TranscriptionBody, "Transcribe speech.", speech.transcribe),
        ("translations", TranslationBody, "Translate speech into English text.", speech.translate),
    ):
        routes.add(f"/v1/audio/{path}", "POST", kind, words, respond, media=FORM)
    for version, body in (("/v2", ItemsBody), ("", InstancesBody)):
        for stream in ("/stream", ""):  # the name of a model, which comes last, may have a /
            path = f"/api{version}/predict/generic{stream}/{{project}}/{{model:path}}"
            routes.add(path, "POST", body, "Complete prompts or chats.", routes.predict, STUDIO)
    return routes.router


class _Routes:
    """Handlers of the routes."""

    def __init__(self, models: ServedModels, access: Access) -> None:
        self.router = APIRouter(tags=["text"])
        self._models = models
        self._access = access
        self._renderer = ChatRenderer()

    def add(
        self, path: str, method: str, body: type[Any] | None, words: str, respond: Respond, api: TextApi = OPENAI,
        media: str = "application/json",
    ) -> None:  # fmt: skip
        extra: dict[str, Any] = {"responses": {"4XX": {"description": api.form}}}
        shown = path.replace(":path}", "}")
        names = [name for name in ("project", "model") if f"{{{name}}}" in shown]
        if names:
            extra["parameters"] = [
                {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names
            ]
        if body is not None:
            content = f"requestBody/content/{media.replace('/', '~1')}/schema"
            place = f"#/paths/{shown.replace('/', '~1')}/{method.lower()}/{content}"
            plain = place.replace("{", "{{").replace("}", "}}")
            schema = body.model_json_schema(ref_template=plain + "/$defs/{model}")
            extra["requestBody"] = {"required": True, "content": {media: {"schema": schema}}}

        async def answer(request: Request) -> Response:
            try:
                self._access.check(api.token(request.headers))
                response = await respond(request)
            except RdukitError as error:
                response = api.refuse(error)
            else:
                if expert := getattr(request.state, "expert", ""):
                    response.headers[EXPERT_HEADER] = expert
            response.headers[api.id_header] = request_id_of(request)
            return response

        self.router.add_api_route(
            path, answer, methods=[method], summary=words, openapi_extra=extra, response_class=JSONResponse
        )

    async def list_models(self, request: Request) -> Response:
        """List the served models: the only one, or all experts in any state."""
        listed = [each.current for each in self._models.repositories if each.current is not None]
        data = [_model(version) for version in listed]
        if (router := self._models.router) is not None:
            data.append(_router(router.name))
        return JSONResponse({"object": "list", "data": data})

    async def get_model(self, request: Request) -> Response:
        """Describe the named model; without a name, as in ``/v1/models/``, list the models."""
        name, router = request.path_params["model"], self._models.router
        if router is not None and name == router.name:
            return JSONResponse(_router(name))
        return JSONResponse(_model(await _find(self._models, name))) if name else await self.list_models(request)

    async def complete(self, request: Request) -> Response:
        """Complete prompts."""
        body = await self._read(CompletionBody, request)
        version = await self._find(request, body.model)
        answer = Completion(
            version.files.name, version, body.requests(), body.choices, is_chat=False,
            with_logprobs=body.logprobs is not None,
        )  # fmt: skip
        return await answer.respond(request, body.stream, body.wants_usage())

    async def chat(self, request: Request) -> Response:
        """Write the next message of a chat."""
        body = await self._read(ChatBody, request)
        version = await self._find(request, body.model)
        template = _chat_template(version, body.has_tools)
        prompt = await self._renderer.render(template, *body.for_template(template))
        answer = Completion(
            version.files.name, version, body.requests(prompt, template), body.choices, is_chat=True,
            with_logprobs=bool(body.logprobs), new_reader=lambda: body.reader(template, prompt),
            with_functions=body.uses_functions,
        )  # fmt: skip
        return await answer.respond(request, body.stream, body.wants_usage())

    async def answer_responses(self, request: Request) -> Response:
        """Answer with items: text and calls."""
        body = await self._read(ResponseBody, request)
        turn = await self._turn(request, body.chat())
        return await ResponseAnswer(turn.version.files.name, body, turn).respond(request, bool(body.stream))

    async def answer_messages(self, request: Request) -> Response:
        """Answer with blocks: text and calls."""
        body = await self._read(MessagesBody, request)
        turn = await self._turn(request, body.chat(body.max_tokens, body.stop_sequences or ()), body.beginning)
        thinks = turn.reader is not None and turn.reader.thinking is not None
        if body.thinking is not None and body.thinking.type == "enabled" and not thinks:
            raise InvalidArgument("thinking: the model's chat template has none; leave it out", field="thinking")
        shows = body.thinking is None or body.thinking.type != "disabled"
        answer = MessageAnswer(turn.version.files.name, body.max_tokens, turn, shows)
        return await answer.respond(request, body.stream)

    async def count_tokens(self, request: Request) -> Response:
        """Count the tokens of a request for a message, without a wait in the queue."""
        body = await self._read(CountBody, request)
        turn = await self._turn(request, body.chat(), body.beginning)
        tokens = await turn.version.prompt_tokens(str(turn.request.prompt), is_rendered=turn.request.is_rendered)
        return JSONResponse({"input_tokens": len(tokens)})

    async def predict(self, request: Request) -> Response:
        """Complete prompts or chats."""
        path = request.scope["route"].path
        is_v2, is_stream = path.startswith("/api/v2/"), "/generic/stream/{project}/" in path
        kind: type[ItemsBody] | type[InstancesBody] = ItemsBody if is_v2 else InstancesBody
        body = await read_body(kind, await request.body())
        params, named = body.params, body.params.select_expert or request.path_params["model"]
        turns = []
        for item, prompt in body.named_items:
            chat = read_chat(named, prompt, params) if params.process_prompt else None
            asked = {"prompt": prompt} if chat is None else chat.model_dump(include={"messages"})
            name = await self._expert(request, named, asked)
            if chat is not None:
                turn = await self._turn(request, chat.model_copy(update={"model": name}))
            else:
                most, version = params.max_tokens_to_generate, await self._find(request, name)
                turn = Turn(
                    version,
                    GenerationRequest(
                        prompt, most, params.sampling(0), params.stops(), keeps_special=params.keeps_special
                    ),
                )
            turns.append((item, prompt, turn))
        if len(turns) > 1:  # each may have an expert of its own
            request.state.expert = ", ".join(sorted({turn.version.files.name for _, _, turn in turns}))
        return await GenericAnswer(turns, is_v2).respond(request, is_stream)

    async def _read(self, kind: type[Named], request: Request) -> Named:
        """Read a body; if it names the router, its model becomes the expert that suits its text.

        Raises:
            InvalidArgument: the body is wrong, or has no text for the choice of an expert.
        """
        raw = await request.body()
        body = await read_body(kind, raw)
        if self._models.router is not None:
            body.model = await self._expert(request, body.model, orjson.loads(raw))
        return body

    async def _expert(self, request: Request, name: str, asked: Mapping[str, Any]) -> str:
        """Return the model of a request: the named one, or the expert that suits its text.

        Raises:
            InvalidArgument: it names the router, but has no text for the choice of an expert.
        """
        router, request.state.choice = self._models.router, ""
        if router is not None and name == router.name:
            text = routed_text(asked)
            if router.router.model:
                vector = await unless_gone(
                    request, _vector_of(await _text_model(self._models, router.router.model), text)
                )
                choice = router.or_fallback(router.router.decide(vector))
            else:
                choice = router.choose(text)
            name, request.state.choice = choice.expert, f"; confidence={choice.confidence:.3f}"
        return name

    async def _find(self, request: Request, name: str) -> ModelVersion:
        """Return the model for the texts of a request; the answer's header names it.

        Raises:
            NotFound: the model is unknown, or is not a text model. InvalidArgument: it hears audio.
        """
        version = await _text_model(self._models, name)
        request.state.expert = version.files.name + str(getattr(request.state, "choice", ""))
        return version

    async def _turn(self, request: Request, chat: ChatBody, beginning: str = "") -> Turn:
        """Return the only text of a chat; it continues ``beginning``.

        Raises:
            NotFound: the model is unknown, or is not a text model. InvalidArgument: the template refuses the chat.
        """
        version = await self._find(request, chat.model)
        template = _chat_template(version, chat.has_tools)
        prompt = await self._renderer.render(template, *chat.for_template(template))
        thinking = find_thinking(template.text, prompt) if beginning else None
        if thinking is not None and thinking.has_begun:
            raise InvalidArgument(
                "messages: the model thinks before it continues a text; leave out the assistant's last message, or "
                "send thinking: {type: disabled}",
                field="messages",
            )
        prompt += beginning
        (asked,) = chat.requests(prompt, template)
        return Turn(version, asked, chat.reader(template, prompt))

    async def embed(self, request: Request) -> Response:
        """Embed each text as a vector."""
        body = await read_body(EmbeddingBody, await request.body())
        version = await self._find(request, body.model)
        found = await unless_gone(request, _embed_all(version, body.inputs(), body.dimensions))
        data = [
            {"object": "embedding", "index": at, "embedding": _encoded(each.values, body.encoding_format)}
            for at, each in enumerate(found)
        ]
        tokens = sum(each.tokens for each in found)
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        answer = {"object": "list", "data": data, "model": version.files.name, "usage": usage}
        queue_us, compute_us = sum(each.queue_us for each in found), sum(each.compute_us for each in found)
        return JSONResponse(answer, headers=server_timing(version, queue_us, compute_us))


def _chat_template(version: ModelVersion, has_tools: bool) -> ChatTemplate:
    """Return the template of a model's chats.

    Raises:
        InvalidArgument: a file is damaged; or the model has an encoder but no template, and therefore no chats.
    """
    template = find_chat_template(version.files.checkpoint, has_tools)
    if template.is_ours and version.text is not None and version.text.get("source"):
        raise InvalidArgument(
            f"messages: {version.files.name} has an encoder and no chat template, so it supports no chats; send the "
            "text as prompt to /v1/completions",
            field="messages",
        )
    return template


async def _embed_all(
    version: ModelVersion, texts: Sequence[str | list[int]], dimensions: int | None
) -> list[Embedding]:  # fmt: skip
    """Return the vectors of texts, in their order.

    Raises:
        InvalidArgument: the model has no vectors of so many ``dimensions``; or a text is empty or too long, and the
            message has its number.
    """
    found: list[Embedding] = []
    for number, text in enumerate(texts):
        try:
            found.append(await version.texts.embed(text))
        except InvalidArgument as cause:
            if len(texts) == 1 or cause.detail.get("field") != "input":
                raise
            raise InvalidArgument(f"input.{number}: {cause.message.removeprefix('input: ')}", field="input") from cause
        if dimensions is not None:
            if number == 0:
                check_dimensions(version.files.checkpoint, dimensions, len(found[0].values))
            found[-1] = replace(found[-1], values=shorten(found[-1].values, dimensions))
    return found


async def _vector_of(version: ModelVersion, text: str) -> NDArray[np.float32]:
    """Return the vector of a text; for a too long text that of its beginning."""
    tokens, most = await version.prompt_tokens(text[:MAX_CHARACTERS]), (version.text or {}).get("prompt", 0)
    found = await version.texts.embed(tokens[:most])
    return np.asarray(found.values, np.float32)


async def _find(models: ServedModels, name: str) -> ModelVersion:
    model, _, version = name.partition(":")
    try:
        return await models.ensure(model, version)
    except NotFound as error:
        raise NotFound(error.message, field="model", openai_code="model_not_found") from error


async def _text_model(models: ServedModels, name: str) -> ModelVersion:
    version = await _find(models, name)
    if version.text is None:
        raise NotFound(f"model {name!r} generates no text; use /v2/models/{version.files.name}/infer", field="model")
    if version.text.get("frames"):
        raise InvalidArgument(f"model {name!r} transcribes speech; use /v1/audio/transcriptions", field="model")
    return version


def _model(version: ModelVersion) -> dict[str, object]:
    entry: dict[str, object] = {"id": version.files.name, "object": "model", "created": int(version.loaded_at)}
    return {**entry, "owned_by": "rdukit", **version.describe()}


def _router(name: str) -> dict[str, object]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "rdukit"}


def _encoded(values: Sequence[float], form: str | None) -> object:
    return base64.b64encode(struct.pack(f"<{len(values)}f", *values)).decode() if form == "base64" else list(values)
