"""The fast path of an inference over REST: from the HTTP parser to the batcher and back, with no task in between.

A task, an ASGI scope and two messages cost a small request a tenth of its time. Only paths that have answered before
use it; other requests than plain ones on an idle connection pass through the application.
"""

import asyncio
import logging
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from rdukit.errors import RdukitError
from rdukit.settings import resolve
from rdukit_serving.models.served import ServedModels
from rdukit_serving.models.version import ModelVersion
from rdukit_serving.rest.inference import JSON, Header, QueuedInference, RequestHead, RestInference
from rdukit_serving.settings import FAST_PATH
from rdukit_serving.signature import InferResponse

logger = logging.getLogger(__name__)

#: Largest number of remembered paths.
MAX_PATHS: Final = 256
#: Longer bodies are written by themselves rather than copied behind their headers.
_LONG_BYTES: Final = 1 << 16


class FastPath:
    """Paths that connections answer by themselves."""

    def __init__(self, models: ServedModels, inference: RestInference) -> None:
        self.models = models
        self.inference = inference
        self._targets: dict[bytes, tuple[str, str]] = {}
        self._max_paths = MAX_PATHS if resolve(FAST_PATH) else 0

    def remember(self, path: bytes, name: str, version: str) -> None:
        """Remember that ``path`` has answered inferences of this model and version."""
        if len(self._targets) < self._max_paths:
            self._targets[path] = (name, version)

    def cycle(self, protocol: Any, url: bytes, keep_alive: bool) -> "FastPathRequest | None":
        """Return the request of a POST to ``url``; None: it must pass through the application."""
        target = self._targets.get(url)
        return None if target is None else FastPathRequest(self, protocol, *target, keep_alive)


class FastPathRequest:
    """Request and response on a connection of uvicorn's, which uses the public attributes. A ``Reply``."""

    __slots__ = (
        "_fast_path",
        "_head",
        "_loading",
        "_name",
        "_protocol",
        "_queued",
        "_version",
        "body",
        "disconnected",
        "keep_alive",
        "more_body",
        "response_complete",
    )  # fmt: skip
    #: An answer is written at once, or has not begun.
    response_started: Final = False

    def __init__(self, fast_path: FastPath, protocol: Any, name: str, version: str, keep_alive: bool) -> None:
        self._fast_path, self._protocol = fast_path, protocol
        self._name, self._version = name, version
        self._head = RequestHead()
        #: Until it is answered: an idle connection keeps no tensors.
        self._queued: QueuedInference | None = None
        self._loading: asyncio.Future[ModelVersion] | None = None
        self.body = bytearray()
        self.more_body = True
        self.keep_alive = keep_alive
        self.disconnected = False
        self.response_complete = False

    @property
    def message_event(self) -> "FastPathRequest":
        """Set by the connection when the caller has gone. No attribute: a cycle of references would live until the
        next garbage collection.
        """
        return self

    def set(self) -> None:
        """React to an event on the connection."""
        if self.disconnected and self._loading is not None:
            self._loading.cancel()

    def begin(self) -> None:
        """Check the headers."""
        try:
            self._head = self._fast_path.inference.read_headers(self._protocol.headers)
        except RdukitError as error:
            self._refuse(error)

    def add(self, body: bytes) -> None:
        """Add a part of the body."""
        if not self.response_complete:
            self.body += body
            try:
                self._fast_path.inference.check_size(len(self.body))
            except RdukitError as error:
                self._refuse(error)

    def run(self) -> None:
        """Run the complete request."""
        if self.response_complete:
            return
        self.more_body = False
        try:
            version = self._fast_path.models.loaded(self._name, self._version)
            if version is not None:
                self._queue(version)
            else:
                self._loading = asyncio.ensure_future(self._fast_path.models.ensure(self._name, self._version))
                self._loading.add_done_callback(self._loaded)
        except Exception as error:  # noqa: BLE001 the request's boundary
            self.set_exception(error)

    def _queue(self, version: ModelVersion) -> None:
        body, self.body = bytes(self.body), bytearray()
        self._queued = self._fast_path.inference.queue(self._name, version, body, self._head, self)

    def _loaded(self, future: "asyncio.Future[ModelVersion]") -> None:
        if future.cancelled():
            return
        try:
            version = future.result()
            if not self.disconnected:
                self._queue(version)
        except Exception as error:  # noqa: BLE001 the request's boundary
            self.set_exception(error)

    def done(self) -> bool:
        """Return whether it is answered, or the caller has gone."""
        return self.response_complete or self.disconnected

    def set_result(self, answer: InferResponse) -> None:
        """Write the answer."""
        try:
            queued, self._queued = self._queued, None
            assert queued is not None
            headers, body = self._fast_path.inference.answer(queued, answer)
            self._respond(200, headers, body)
        except Exception as error:  # noqa: BLE001 the request's boundary
            self.set_exception(error)

    def set_exception(self, error: BaseException) -> None:
        """Write the error."""
        if not isinstance(error, RdukitError):
            self._break(error)
        elif not self.done():
            self._refuse(error)

    def _refuse(self, error: RdukitError) -> None:
        body, code = self._fast_path.inference.refuse(self._name, error)
        self._respond(error.http_status, [JSON, code], body)

    def _break(self, error: BaseException) -> None:
        logger.error("request broke model=%s", self._name, exc_info=error)
        if not self.done():
            self._respond(500, [JSON], b'{"error":"the box failed; its log has more"}')

    def _respond(self, status: int, headers: list[Header], body: bytes) -> None:
        protocol = self._protocol
        parts = [STATUS_LINE[status]]
        for name, value in (*protocol.server_state.default_headers, *headers):
            parts += (name, b": ", value, b"\r\n")
        if not self.keep_alive:
            parts.append(b"connection: close\r\n")
        parts.append(b"content-length: %d\r\n\r\n" % len(body))
        if len(body) < _LONG_BYTES:
            parts.append(body)
            protocol.transport.write(b"".join(parts))
        else:
            protocol.transport.write(b"".join(parts))
            protocol.transport.write(body)
        self.response_complete = True
        if not self.keep_alive:
            protocol.transport.close()
        protocol.on_response_complete()
