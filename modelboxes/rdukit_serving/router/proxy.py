"""OpenAI's and Anthropic's routes in front of several servers. A request for the router's name goes to the expert that
suits its text, a request for an expert to that expert. Answers are streamed, and name the expert.

A caller's token is passed to the expert's server, which authenticates; the router has no tokens.
"""

import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import httpx
import numpy as np
import orjson
from numpy.typing import NDArray
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from rdukit.box.sse import EVENT_STREAM
from rdukit.errors import InvalidArgument, NotFound, RdukitError, Unauthenticated, Unavailable
from rdukit.strict_json import refuse_duplicates
from rdukit_serving.router.decision import NamedRouter, RoutedChoice
from rdukit_serving.router.word_vectors import EXPERT_HEADER, MAX_CHARACTERS, routed_text
from rdukit_serving.text.answers import unless_gone
from rdukit_serving.text.openai_answers import error_body

#: Names of experts and routers, which are in headers, too.
_NAME: Final = re.compile(r"[!-~]{1,200}")
#: Headers that are passed on to the expert, and those of its answer that are passed back.
PASSED: Final = ("authorization", "x-api-key", "anthropic-version", "x-request-id", "ss-sn-options")
RETURNED: Final = (
    "content-type", "retry-after", "server-timing", "x-request-id", "request-id", "cache-control", "x-accel-buffering",
)  # fmt: skip
_PATHS: Final = ("chat/completions", "completions", "responses", "messages", "messages/count_tokens", "embeddings")
#: Seconds without a byte of an answer, and for a connection.
TIMEOUT: Final = httpx.Timeout(600.0, connect=5.0)


@dataclass(frozen=True, slots=True)
class ServedExpert:
    """Place where an expert answers: a base URL with ``/v1``, and its model's name there; empty: the first."""

    name: str
    url: str
    model: str = ""


@dataclass(slots=True)
class RouterDoor:
    """The routes of one router.

    ``embeddings``: address that turns texts into vectors, for a router that learned from a model's vectors.
    ``transport``: replaces the network; None: the network.
    """

    named: NamedRouter
    experts: Sequence[ServedExpert]
    embeddings: str = ""
    transport: httpx.AsyncBaseTransport | None = None
    _client: httpx.AsyncClient = field(init=False)
    #: Names of experts' models at their servers, once asked for.
    _models: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        names = [expert.name for expert in self.experts]
        router = self.named.router
        missing = sorted({*router.experts, self.named.fallback} - {*names, ""})
        if missing or len(set(names)) != len(names) or self.named.name in names:
            raise InvalidArgument(
                f"the experts are {', '.join(names)}, the router {self.named.name}; expected each expert of the router "
                f"({', '.join(router.experts)}) once, and no expert with the router's name"
            )
        if wrong := [name for name in (self.named.name, *names) if not _NAME.fullmatch(name)]:
            raise InvalidArgument(
                f"{wrong[0]!r} is not a valid name; expected 1 to 200 ASCII characters without spaces"
            )
        if router.model and not self.embeddings:
            raise InvalidArgument(
                f"this router chooses by vectors of {router.model!r}; give that model's URL (--embeddings)"
            )
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=32)
        self._client = httpx.AsyncClient(
            timeout=TIMEOUT, limits=limits, trust_env=False, transport=self.transport, follow_redirects=False
        )
        self._models = {expert.name: expert.model for expert in self.experts if expert.model}

    def routes(self) -> list[Route]:
        """Return what answers."""
        posts = [Route(f"/v1/{path}", _answering(self._call), methods=["POST"]) for path in _PATHS]
        return [
            *posts,
            Route("/v1/models", _answering(self._list), methods=["GET"]),
            Route("/v1/models/{model:path}", _answering(self._show), methods=["GET"]),
            Route("/v2/health/ready", _answering(self._ready), methods=["GET"]),
        ]

    async def close(self) -> None:
        """Close all connections to experts."""
        await self._client.aclose()

    async def _ready(self, request: Request) -> Response:
        return JSONResponse({"ready": True})

    async def _list(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [self._entry(name) for name in self._names()]})

    async def _show(self, request: Request) -> Response:
        name = request.path_params["model"]
        if name not in self._names():
            raise self._unknown(name)
        return JSONResponse(self._entry(name))

    def _names(self) -> list[str]:
        return [self.named.name, *(expert.name for expert in self.experts)]

    def _entry(self, name: str) -> dict[str, object]:
        return {"id": name, "object": "model", "created": 0, "owned_by": "rdukit"}

    def _unknown(self, name: object) -> RdukitError:
        return NotFound(
            f"there is no model {name!r}; expected {', '.join(self._names())}", field="model",
            openai_code="model_not_found",
        )  # fmt: skip

    async def _call(self, request: Request) -> Response:
        raw = await request.body()
        try:
            body = orjson.loads(raw)
        except ValueError as cause:
            raise InvalidArgument(f"the body is not JSON: {cause}") from cause
        if not isinstance(body, dict) or not isinstance(body.get("model"), str):
            raise InvalidArgument("model: a request is an object with the name of a model", field="model")
        refuse_duplicates(raw)
        headers = {name: request.headers[name] for name in PASSED if name in request.headers}
        return await unless_gone(request, self._forward(request.url.path.removeprefix("/v1/"), body, headers))

    async def _forward(self, path: str, body: dict[str, Any], headers: dict[str, str]) -> Response:
        choice = await self._choose(path, body, headers)
        expert = next(expert for expert in self.experts if expert.name == choice.expert)
        content = orjson.dumps({**body, "model": await self._model_of(expert, headers)})
        # Answers are passed on unchanged, so they must not be compressed.
        headers = {**headers, "content-type": "application/json", "accept-encoding": "identity"}
        asked = self._client.build_request("POST", f"{expert.url}/{path}", content=content, headers=headers)
        answer = await self._send(expert, asked)
        headers = {name: answer.headers[name] for name in RETURNED if name in answer.headers}
        headers[EXPERT_HEADER] = f"{expert.name}; confidence={choice.confidence:.3f}"
        if answer.headers.get("content-type", "").startswith(EVENT_STREAM):
            return StreamingResponse(_named_lines(answer, expert.name), answer.status_code, headers)
        try:
            content = await answer.aread()
        except httpx.HTTPError as cause:
            raise _lost(expert, cause) from cause
        finally:
            await answer.aclose()
        return Response(_named(content, expert.name), answer.status_code, headers)

    async def _choose(self, path: str, body: Mapping[str, Any], headers: Mapping[str, str]) -> RoutedChoice:
        """Return the expert that a request names, or the one that suits its text."""
        name = body["model"]
        if name in self._names()[1:]:
            return RoutedChoice(name, 1.0)
        if name != self.named.name:
            raise self._unknown(name)
        if path == "embeddings":
            raise InvalidArgument(
                "model: vectors of different experts cannot be compared; name one expert", field="model"
            )
        text = routed_text(body)
        if not self.named.router.model:
            return self.named.choose(text)
        return self.named.or_fallback(self.named.router.decide(await self._vector(text, headers)))

    async def _vector(self, text: str, headers: Mapping[str, str]) -> NDArray[np.float32]:
        found = await fetch_vectors(self._client, self.embeddings, self.named.router.model, [text], headers)
        return found[0]

    async def _model_of(self, expert: ServedExpert, headers: Mapping[str, str]) -> str:
        """Return the name of an expert's model at its server, which is requested once."""
        if expert.name not in self._models:
            answer = await self._send(
                expert, self._client.build_request("GET", f"{expert.url}/models", headers=dict(headers))
            )
            try:
                content = await answer.aread()
                if answer.status_code in (401, 403):
                    raise Unauthenticated(f"the server of expert {expert.name!r} refuses the caller's token")
                listed = orjson.loads(content)
                self._models[expert.name] = str(listed["data"][0]["id"])
            except (httpx.HTTPError, ValueError, LookupError, TypeError) as cause:
                raise Unavailable(
                    f"the server of expert {expert.name!r} lists no model ({answer.status_code}); name one by "
                    f"--expert {expert.name}=URL#MODEL"
                ) from cause
            finally:
                await answer.aclose()
        return self._models[expert.name]

    async def _send(self, expert: ServedExpert, request: httpx.Request) -> httpx.Response:
        try:
            return await self._client.send(request, stream=True)
        except httpx.HTTPError as cause:
            raise _lost(expert, cause) from cause


async def fetch_vectors(
    client: httpx.AsyncClient, url: str, model: str, texts: Sequence[str], headers: Mapping[str, str]
) -> list[NDArray[np.float32]]:
    """Return a vector [D] of each text from ``url``/embeddings; if a text is refused as too long, that of its
    beginning.

    Raises:
        Unavailable: the server does not answer, or with something else.
    """
    texts = [text[:MAX_CHARACTERS] for text in texts]
    try:
        answer = await client.post(f"{url}/embeddings", json={"model": model, "input": texts}, headers=dict(headers))
        if answer.status_code == 400 and len(texts) > 1:
            return [(await fetch_vectors(client, url, model, [text], headers))[0] for text in texts]
        if answer.status_code == 400 and len(texts[0]) > 1:
            return await fetch_vectors(client, url, model, [texts[0][: len(texts[0]) // 2]], headers)
        found = answer.raise_for_status().json()["data"]
        vectors = [np.asarray(each["embedding"], np.float64) for each in found]
        are_legal = all(each.ndim == 1 and (abs(each) <= np.finfo(np.float32).max).all() for each in vectors)
        if len(vectors) != len(texts) or not are_legal:
            raise ValueError(f"{len(vectors)} answers for {len(texts)} texts, or an answer that is not a vector")
        return [each.astype(np.float32) for each in vectors]
    except (httpx.HTTPError, ValueError, LookupError, TypeError) as cause:
        raise Unavailable(f"{url}/embeddings gave no vectors of {model!r}: {cause!r}") from cause


def _answering(respond: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
    """Return the handler, which answers errors as OpenAI's clients read them."""

    async def answer(request: Request) -> Response:
        try:
            return await respond(request)
        except RdukitError as error:
            return JSONResponse(error_body(error), error.http_status)

    return answer


def _lost(expert: ServedExpert, cause: Exception) -> RdukitError:
    words = str(cause) or type(cause).__name__
    return Unavailable(f"expert {expert.name!r} at {expert.url} does not answer: {words}; is its server running?")


async def _named_lines(answer: httpx.Response, name: str) -> AsyncGenerator[bytes]:
    """Yield the lines of an event stream, with the expert's name as the model's."""
    rest = b""
    try:
        async for part in answer.aiter_raw():
            *lines, rest = (rest + part).split(b"\n")
            if lines:
                yield b"".join(_named_line(line, name) + b"\n" for line in lines)
        yield rest
    except httpx.HTTPError as cause:
        error = Unavailable(f"the answer of expert {name!r} broke off: {cause or type(cause).__name__}")
        yield b"data: " + orjson.dumps(error_body(error)) + b"\n\n"
    finally:
        await answer.aclose()


def _named_line(line: bytes, name: str) -> bytes:
    return b"data: " + _named(line[6:], name) if line.startswith(b"data: {") else line


def _named(content: bytes, name: str) -> bytes:
    """Return JSON with the expert as ``model``, at the top or in a response or a message; other bytes unchanged."""
    try:
        value = orjson.loads(content)
    except ValueError:
        return content
    found = False
    for place in (value, *(value.get(key) for key in ("response", "message"))) if isinstance(value, dict) else ():
        if isinstance(place, dict) and isinstance(place.get("model"), str):
            place["model"], found = name, True
    return orjson.dumps(value) if found else content
