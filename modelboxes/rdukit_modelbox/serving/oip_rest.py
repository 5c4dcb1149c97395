"""The Open Inference Protocol v2 over REST, as a bare ASGI application: the hot path of a box.

Every refusal is ``{"error": text}`` with a 4xx status, as the protocol says. Source: Open Inference Protocol v2,
"HTTP/REST"; Triton's extensions for binary data, statistics, model configuration and the model repository.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, Final

import orjson

from rdukit.errors import InvalidArgument, NotFound, RdukitError, RequestTooLarge, Unavailable
from rdukit.settings import resolve
from rdukit_modelbox.serving.access import Access
from rdukit_modelbox.serving.access_log import AccessLog
from rdukit_modelbox.serving.box_models import BoxModels
from rdukit_modelbox.serving.classification import check_classes, classify
from rdukit_modelbox.serving.disconnects import Disconnects
from rdukit_modelbox.serving.metadata import model_configuration, model_metadata, server_metadata
from rdukit_modelbox.serving.model_version import ModelVersion
from rdukit_modelbox.serving.repository import Repository
from rdukit_modelbox.serving.repository_calls import load_model, unload_model
from rdukit_modelbox.serving.requests import InferAnswer
from rdukit_modelbox.serving.rest_codec import check_forms, needs_form_check, parse_infer, render_infer
from rdukit_modelbox.serving.settings import MAX_INFER_BYTES

logger = logging.getLogger(__name__)

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_JSON: Final = (b"content-type", b"application/json")
#: Extensions that clients ask for and that have no meaning here.
_NOT_SERVED: Final = frozenset({"systemsharedmemory", "cudasharedmemory", "trace", "logging"})


class OpenInferenceApp:
    """Routes below ``/v2``."""

    def __init__(
        self, models: BoxModels, access: Access, access_log: AccessLog, why_not_ready: Callable[[], Awaitable[str]]
    ) -> None:
        self._models = models
        self._repository = models.repository
        self._access = access
        self._log = access_log
        self._why_not_ready = why_not_ready
        self._most_bytes = resolve(MAX_INFER_BYTES)
        self._disconnects = Disconnects()
        self._infer_paths: dict[str, tuple[str, str]] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        path: str = scope["path"]
        try:
            known = self._infer_paths.get(path)
            if known is not None and scope["method"] == "POST":
                await self._infer(scope, receive, send, *known)
            else:
                await self._other(scope, receive, send, path)
        except _WrongMethod as error:
            allow = (b"allow", error.legal.encode())
            await _answer(send, 405, orjson.dumps({"error": str(error)}), allow)
        except RdukitError as error:
            if self._log.is_on:
                self._log.add("rest", self._repository.name, "", error.http_status, 0, 0, 0)
            await _answer(send, error.http_status, orjson.dumps({"error": error.message}))
        except Exception as error:  # the request's border
            logger.error("request broke path=%s", path, exc_info=error)
            await _answer(send, 500, b'{"error":"the box failed; its log has more"}')

    async def _infer(self, scope: Scope, receive: Receive, send: Send, name: str, version: str) -> None:
        header_length, authorization = None, None
        for key, value in scope["headers"]:
            if key == b"inference-header-content-length":
                header_length = _number(value)
            elif key == b"authorization":
                authorization = value
            elif key == b"content-encoding":
                raise InvalidArgument(
                    f"Content-Encoding {value.decode('latin-1')!r} is not served; send the body as it is"
                )
        self._access.check(authorization)
        body = await self._body(receive)
        found = await self._models.ensure(name, version)
        signature = found.signature
        try:
            request = parse_infer(body, header_length)
            if request.classes:
                check_classes(signature, request.classes)
            if needs_form_check(signature):
                check_forms(signature, request)
        except InvalidArgument:
            found.statistics.count_failed(1)
            raise
        future = found.submit(request)
        self._disconnects.watch(future, receive)
        answer = await future
        if request.classes:
            signature, answer = classify(signature, answer, request.classes)
        text, length = render_infer(name, found.version, signature, request, answer)
        timing = answer.timing
        headers = [
            _JSON if length is None else (b"content-type", b"application/octet-stream"),
            (b"content-length", b"%d" % len(text)),
            (b"server-timing", _server_timing(found, answer)),
        ]
        if length is not None:
            headers.append((b"inference-header-content-length", b"%d" % length))
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": text})
        if self._log.is_on:
            self._log.add("rest", name, found.version, 200, answer.rows, timing.queue, timing.compute)

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
                if size > self._most_bytes:
                    break
            body = b"".join(parts)
        if len(body) > self._most_bytes:
            raise RequestTooLarge(f"the body is longer than {self._most_bytes} bytes (box.max_infer_bytes)")
        return body

    async def _other(self, scope: Scope, receive: Receive, send: Send, path: str) -> None:
        method: str = scope["method"]
        parts = [part for part in path.split("/") if part][1:]
        if parts[:1] == ["health"]:
            await self._health(parts, method, send)
            return
        self._access.check(dict(scope["headers"]).get(b"authorization"))
        match parts:
            case ["models", name, "infer"] | ["models", name, "versions", _, "infer"]:
                _require(method, "POST")
                version = parts[3] if len(parts) == 5 else ""
                await self._infer(scope, receive, send, name, version)
                if len(self._infer_paths) < 256:
                    self._infer_paths[path] = (name, version)
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
        repository = self._repository
        match parts:
            case []:
                _require(method, "GET")
                return server_metadata()
            case ["models", "stats"]:
                _require(method, "GET")
                return {"model_stats": [v.statistics.to_json(repository.name, n) for n, v in _loaded(repository)]}
            case ["models", name, "stats"] | ["models", name, "versions", _, "stats"]:
                _require(method, "GET")
                found = repository.find(name, parts[3] if len(parts) == 5 else "")
                each = [(found.version, found)] if len(parts) == 5 else _loaded(repository)
                return {"model_stats": [v.statistics.to_json(name, n) for n, v in each]}
            case ["models", name] | ["models", name, "versions", _]:
                _require(method, "GET")
                found = repository.find(name, parts[3] if len(parts) == 4 else "")
                return model_metadata(repository, found)
            case ["models", name, "config"] | ["models", name, "versions", _, "config"]:
                _require(method, "GET")
                return model_configuration(repository, repository.find(name, parts[3] if len(parts) == 5 else ""))
            case ["repository", "index"]:
                _require(method, "POST")
                ready = _object(body).get("ready", False)
                if not isinstance(ready, bool):
                    raise InvalidArgument(f"ready {ready!r} is not legal; legal: true or false")
                return [entry for entry in repository.index() if not ready or entry["state"] == "READY"]
            case ["repository", "models", name, "load"]:
                _require(method, "POST")
                await load_model(repository, name, _object(body).get("parameters") or {}, self._models.resolve_path)
                return None
            case ["repository", "models", name, "unload"]:
                _require(method, "POST")
                await unload_model(repository, name, _object(body).get("parameters") or {})
                return None
            case [first, *_] if first in _NOT_SERVED:
                raise InvalidArgument(f"the extension {first!r} is not served; GET /v2 lists those that are")
        raise NotFound(f"{method} /v2/{'/'.join(parts)}: there is no such route")

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
                f"GET /v2/{'/'.join(parts)}: there is no such route; legal: /v2/health/live, /v2/health/ready"
            )

    async def _model_ready(self, name: str, version: str) -> tuple[int, Mapping[str, object]]:
        found = self._repository.find(name, version)
        reason = await found.why_not_ready()
        return (503, {"error": reason}) if reason else (200, {"name": name, "ready": True})


async def _answer(send: Send, status: int, body: bytes, *more: tuple[bytes, bytes]) -> None:
    headers = [_JSON, (b"content-length", b"%d" % len(body)), *more]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _server_timing(version: ModelVersion, answer: InferAnswer) -> bytes:
    """Milliseconds, as the header's standard has them; nothing is compiled for a request. Source: W3C Server Timing."""
    timing = answer.timing
    return b"queue;dur=%.3f, compute;dur=%.3f, load;dur=%.0f, compile;dur=0" % (
        timing.queue / 1000,
        (timing.copy_in + timing.compute + timing.copy_out) / 1000,
        version.load_seconds * 1000,
    )


def _loaded(repository: Repository) -> list[tuple[str, ModelVersion]]:
    return [(number, repository.versions[number]) for number in repository.ready_versions()]


def _require(method: str, legal: str) -> None:
    if method != legal and not (legal == "GET" and method == "HEAD"):
        raise _WrongMethod(method, legal)


class _WrongMethod(Exception):
    """A method that a route lacks; its status has no error class."""

    def __init__(self, method: str, legal: str) -> None:
        super().__init__(f"method {method} is not legal here; legal: {legal}")
        self.legal = legal


def _number(text: bytes) -> int:
    if not text.isdigit() or len(text) > 12:
        raise InvalidArgument(
            f"Inference-Header-Content-Length {text.decode('latin-1')!r} is not legal; legal: a number"
        )
    return int(text)


def _object(body: bytes) -> Mapping[str, Any]:
    if not body:
        return {}
    try:
        value = orjson.loads(body)
    except ValueError as cause:
        raise InvalidArgument(f"the request is not JSON: {cause}") from cause
    if not isinstance(value, dict) or not isinstance(value.get("parameters") or {}, dict):
        raise InvalidArgument("the request must be a JSON object, and its parameters one too")
    return value
