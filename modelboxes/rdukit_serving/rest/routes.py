"""The Open Inference Protocol v2 over REST, as a bare ASGI application, and the application around it.

Inferences need no web framework, whose import takes a third of a second, so a server answers them first. A thread
builds the control routes as soon as the model answers; the first control request may wait for it. Every refusal is
``{"error": text}`` with a 4xx status, as in the protocol.

Source: Open Inference Protocol v2, "HTTP/REST"; Triton's extensions for binary data, statistics, model configuration
and the model repository.
"""

import asyncio
import gc
import logging
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, Final

import orjson

from rdukit.errors import InvalidArgument, NotFound, RdukitError, Unauthenticated, Unavailable
from rdukit.strict_json import read_json, refuse_duplicates
from rdukit_serving.access import Access, AccessLog
from rdukit_serving.models.repository import (
    Repository,
    load_model,
    model_configuration,
    model_metadata,
    server_metadata,
    unload_model,
)
from rdukit_serving.models.served import ServedModels
from rdukit_serving.models.version import ModelVersion
from rdukit_serving.rest.inference import JSON, RestInference
from rdukit_serving.signature import InferResponse
from rdukit_serving.tuning.fast_path import FastPath

logger = logging.getLogger(__name__)

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

#: Extensions that clients request and that have no effect here.
_NOT_SERVED: Final = frozenset({"systemsharedmemory", "cudasharedmemory", "trace", "logging"})
#: Path segments that may follow a model's name.
_OF_MODELS: Final = frozenset({"infer", "ready", "stats", "config", "load", "unload", "rows", "images"})


class OpenInferenceApp:
    """ASGI application of the routes below ``/v2``."""

    def __init__(
        self, models: ServedModels, access: Access, access_log: AccessLog, why_not_ready: Callable[[], Awaitable[str]]
    ) -> None:
        self._models = models
        self._repository = models.repository
        self._access = access
        self._why_not_ready = why_not_ready
        self._inference = RestInference(access, access_log)
        #: For connections, which answer by themselves on paths that have answered before.
        self.fast_path = FastPath(models, self._inference)
        self._disconnects = Disconnects()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        path: str = scope["path"]
        try:
            await self._route(scope, receive, send, path)
        except _WrongMethod as error:
            allow = (b"allow", error.legal.encode())
            await _answer(send, 405, orjson.dumps({"error": str(error)}), allow)
        except RdukitError as error:
            await _answer(send, error.http_status, *self._inference.refuse(self._repository.name, error))
        except Exception as error:  # the request's boundary
            logger.error("request broke path=%s", path, exc_info=error)
            await _answer(send, 500, b'{"error":"the box failed; its log has more"}')

    async def _infer(self, scope: Scope, receive: Receive, send: Send, name: str, version: str) -> None:
        head = self._inference.read_headers(scope["headers"])
        body = await self._body(receive)
        found = await self._models.ensure(name, version)
        reply: asyncio.Future[InferResponse] = asyncio.get_running_loop().create_future()
        queued = self._inference.queue(name, found, body, head, reply)
        self._disconnects.watch(reply, receive)
        headers, text = self._inference.answer(queued, await reply)
        headers.append((b"content-length", b"%d" % len(text)))
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": text})

    async def _body(self, receive: Receive) -> bytes:
        message = await receive()
        body: bytes = message.get("body", b"")
        if message.get("more_body"):
            parts, size = [body], len(body)
            while message.get("more_body"):
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise Unavailable("the caller went away")
                parts.append(message.get("body", b""))
                size += len(parts[-1])
                self._inference.check_size(size)
            body = b"".join(parts)
        self._inference.check_size(len(body))
        return body

    async def _route(self, scope: Scope, receive: Receive, send: Send, path: str) -> None:
        method: str = scope["method"]
        parts = path_parts(path)
        if parts[:1] == ["health"]:
            await self._health(parts, method, send)
            return
        self._access.check(dict(scope["headers"]).get(b"authorization"))
        match parts:
            case ["models", name, "infer"] | ["models", name, "versions", _, "infer"]:
                _require(method, "POST")
                version = parts[3] if len(parts) == 5 else ""
                await self._infer(scope, receive, send, name, version)
                self.fast_path.remember(scope["raw_path"], name, version)
                return
            case ["models", name, "rows"] | ["models", name, "versions", _, "rows"]:
                _require(method, "POST")
                body = await self._body(receive)
                found = await self._models.ensure(name, parts[3] if len(parts) == 5 else "")
                answered = await self._models.predict(_rows(body), found)
                said = {"model_name": name, "model_version": found.version}
                await _answer(send, 200, orjson.dumps({**said, "predictions": [each.to_json() for each in answered]}))
                return
            case ["models", name, "images"] | ["models", name, "versions", _, "images"]:
                _require(method, "POST")
                body = await self._body(receive)
                found = await self._models.ensure(name, parts[3] if len(parts) == 5 else "")
                pictures = _pictures(dict(scope["headers"]).get(b"content-type", b""), body)
                answered = await self._models.classify(pictures, found)
                said = {"model_name": name, "model_version": found.version}
                tops = [each.to_top_json() for each in answered]
                await _answer(send, 200, orjson.dumps({**said, "predictions": tops}))
                return
            case ["models", name, "ready"] | ["models", name, "versions", _, "ready"]:
                _require(method, "GET")
                status, state = await self._model_ready(name, parts[3] if len(parts) == 5 else "")
                await _answer(send, status, orjson.dumps(state))
                return
        body = await self._body(receive) if method == "POST" else b""
        value = await self._value(parts, method, body)
        await _answer(send, 200, b"" if value is None else orjson.dumps(value))

    async def _value(self, parts: list[str], method: str, body: bytes) -> object:
        match parts:
            case []:
                _require(method, "GET")
                return server_metadata()
            case ["models", "stats"]:
                _require(method, "GET")
                repositories = self._models.repositories
                return {"model_stats": [v.statistics.to_json(r.name, n) for r in repositories for n, v in _loaded(r)]}
            case ["models", name, "stats"] | ["models", name, "versions", _, "stats"]:
                _require(method, "GET")
                repository = self._models.repository_of(name)
                found = repository.find(name, parts[3] if len(parts) == 5 else "")
                each = [(found.version, found)] if len(parts) == 5 else _loaded(repository)
                return {"model_stats": [v.statistics.to_json(repository.name, n) for n, v in each]}
            case ["models", name] | ["models", name, "versions", _]:
                _require(method, "GET")
                # A caller that asks for names and shapes before its first request gets the newest training's, too.
                found = await self._models.ensure(name, parts[3] if len(parts) == 4 else "")
                return model_metadata(self._models.repository_of(name), found)
            case ["models", name, "config"] | ["models", name, "versions", _, "config"]:
                _require(method, "GET")
                repository = self._models.repository_of(name)
                return model_configuration(repository, repository.find(name, parts[3] if len(parts) == 5 else ""))
            case ["repository", "index"]:
                _require(method, "POST")
                ready = _object(body, "ready").get("ready", False)
                if not isinstance(ready, bool):
                    raise InvalidArgument(f"ready {ready!r} is not valid; expected true or false")
                entries = [entry for repository in self._models.repositories for entry in repository.index()]
                return [entry for entry in entries if not ready or entry["state"] == "READY"]
            case ["repository", "models", name, "load"]:
                _require(method, "POST")
                repository = self._models.repository_of(name)
                await load_model(
                    repository, name, _object(body, "parameters").get("parameters") or {}, self._models.resolve_path
                )
                return None
            case ["repository", "models", name, "unload"]:
                _require(method, "POST")
                repository = self._models.repository_of(name)
                await unload_model(repository, name, _object(body, "parameters").get("parameters") or {})
                return None
            case [first, *_] if first in _NOT_SERVED:
                raise InvalidArgument(f"the extension {first!r} is not served; GET /v2 lists those that are")
        raise NotFound(f"{method} /v2/{'/'.join(parts)}: this route does not exist")

    async def _health(self, parts: list[str], method: str, send: Send) -> None:
        _require(method, "GET")
        if parts == ["health", "live"]:
            await _answer(send, 200, b'{"live":true}')
        elif parts == ["health", "ready"]:
            reason = await self._why_not_ready()
            value: Mapping[str, object] = {"live": True, "ready": True} if not reason else {"error": reason}
            await _answer(send, 503 if reason else 200, orjson.dumps(value))
        else:
            raise NotFound(
                f"GET /v2/{'/'.join(parts)}: this route does not exist; expected /v2/health/live, /v2/health/ready"
            )

    async def _model_ready(self, name: str, version: str) -> tuple[int, Mapping[str, object]]:
        found = self._models.repository_of(name).find(name, version)
        reason = await found.why_not_ready()
        return (503, {"error": reason}) if reason else (200, {"name": name, "ready": True})


def path_parts(path: str) -> list[str]:
    """Return the parts of a path below ``/v2``; a model's name is one part, even with a ``/`` (pure)."""
    parts = [part for part in path.split("/") if part][1:]
    begin = 2 if parts[:2] == ["repository", "models"] else 1
    if parts[begin - 1 : begin] != ["models"] or len(parts) <= begin + 1:
        return parts
    end = len(parts) - (parts[-1] in _OF_MODELS)
    if parts[max(end - 2, begin + 1) : end - 1] == ["versions"]:
        end -= 2
    return [*parts[:begin], "/".join(parts[begin:end]), *parts[end:]]


async def _answer(send: Send, status: int, body: bytes, *more: tuple[bytes, bytes]) -> None:
    headers = [JSON, (b"content-length", b"%d" % len(body)), *more]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _loaded(repository: Repository) -> list[tuple[str, ModelVersion]]:
    return [(number, repository.versions[number]) for number in repository.ready_versions()]


def _require(method: str, legal: str) -> None:
    if method != legal and not (legal == "GET" and method == "HEAD"):
        raise _WrongMethod(method, legal)


class _WrongMethod(Exception):
    """Method that a route lacks; its status has no error class."""

    def __init__(self, method: str, legal: str) -> None:
        super().__init__(f"method {method} is not valid here; expected {legal}")
        self.legal = legal


def _object(body: bytes, legal: str) -> Mapping[str, Any]:
    """Return the request's object, whose only field is ``legal``."""
    if not body:
        return {}
    try:
        value = orjson.loads(body)
    except ValueError as cause:
        raise InvalidArgument(f"the request is not JSON: {cause}") from cause
    if not isinstance(value, dict) or not isinstance(value.get("parameters") or {}, dict):
        raise InvalidArgument("the request must be a JSON object, and its parameters one too")
    refuse_duplicates(body)
    unknown = next((key for key in value if key != legal), None)
    if unknown is not None:
        raise InvalidArgument(f"the request has no field {unknown[:80]!r}; expected {legal}")
    return value


def _pictures(content_type: bytes, body: bytes) -> list[bytes]:
    """Return the pictures of a request: its body, or base64 in its JSON."""
    if content_type.lower().startswith((b"image/", b"application/octet-stream")):
        return [body]
    from rdukit_serving.raw_inputs.pictures import decode_pictures

    try:
        return decode_pictures(read_json(body))
    except (ValueError, RecursionError) as cause:
        raise InvalidArgument(f"the request is not JSON: {cause}; or send Content-Type: image/…") from cause


def _rows(body: bytes) -> list[Any]:
    """Return the rows of a request, its only field; the model's table defines their form."""
    try:
        value = read_json(body)
    except (ValueError, RecursionError) as cause:
        raise InvalidArgument(f"the request is not JSON: {cause}") from cause
    rows = value.get("rows") if isinstance(value, dict) else None
    if not isinstance(rows, list) or len(value) != 1:
        raise InvalidArgument('the request must be {"rows": [{"COLUMN": value, …}, …]}, without other fields')
    return rows


Application = Callable[[Any, Any, Any], Awaitable[None]]
#: Routes that anybody may call: probes have no token.
_OPEN = ("/health/", "/v2/health/")
#: Below these paths the routes themselves check the token, at the place of their APIs' clients, and refuse in their
#: form.
_LOOKED_FOR = ("/v1/messages", "/api/")


class ServerApp:
    """ASGI application of a whole server: hands requests on by their path."""

    def __init__(self, inference: OpenInferenceApp, make_routes: Callable[[], Application], access: Access) -> None:
        """``make_routes`` builds the application for all other routes; called once, in a thread."""
        self._inference = inference
        self._make_routes = make_routes
        self._routes: asyncio.Task[Application] | None = None
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        path: str = scope["path"]
        if path.startswith("/v2/") or path == "/v2":
            await self._inference(scope, receive, send)
            return
        if not self._access.is_open and scope["type"] == "http" and not path.startswith(_OPEN + _LOOKED_FOR):
            try:
                self._access.check(dict(scope["headers"]).get(b"authorization"))
            except Unauthenticated as error:
                body = orjson.dumps(error.body())
                headers = [
                    (b"content-type", b"application/json"), (b"content-length", b"%d" % len(body)),
                    (b"www-authenticate", b"Bearer"),
                ]  # fmt: skip
                await send({"type": "http.response.start", "status": error.http_status, "headers": headers})
                await send({"type": "http.response.body", "body": body})
                return
        await (await self.routes())(scope, receive, send)

    def routes(self) -> "asyncio.Task[Application]":
        """Return the application for all other routes; built at the first call."""
        if self._routes is None:
            self._routes = asyncio.create_task(self._prepare())
        return self._routes

    async def _prepare(self) -> Application:
        routes = await asyncio.to_thread(self._make_routes)
        gc.freeze()  # it stays: collections look at requests' objects only
        return routes


#: Seconds between two checks of waiting requests.
LOOK_S: Final = 0.05

_Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


class Disconnects:
    """Requests whose callers may go away. Belongs to one event loop."""

    def __init__(self) -> None:
        #: Requests since the last check, and their number at that check.
        self._new: list[tuple[asyncio.Future[Any], _Receive]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._listening: set[asyncio.Task[None]] = set()

    def watch(self, future: "asyncio.Future[Any]", receive: _Receive) -> None:
        """Cancel ``future`` when the caller of ``receive`` goes away."""
        self._new.append((future, receive))
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._look)

    def _look(self) -> None:
        self._timer = None
        waiting, self._new = self._new, []
        for future, receive in waiting:
            if not future.done():
                task = asyncio.create_task(_listen(future, receive))
                self._listening.add(task)
                task.add_done_callback(self._listening.discard)


async def _listen(future: "asyncio.Future[Any]", receive: _Receive) -> None:
    leaving = asyncio.ensure_future(receive())
    await asyncio.wait({leaving, future}, return_when=asyncio.FIRST_COMPLETED)
    if leaving.done() and leaving.exception() is None and leaving.result()["type"] == "http.disconnect":
        future.cancel()
    leaving.cancel()
