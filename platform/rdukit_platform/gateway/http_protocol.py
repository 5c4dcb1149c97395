"""The HTTP side of the gateway's connections: who says nothing for long, or reads nothing, does not keep one.

Uvicorn waits for ever for the rest of a request and for a reader, and takes headers of any length.
"""

import asyncio
import resource
from typing import Any, Final

import orjson
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from rdukit.errors import HeadersTooLarge, MalformedRequest, RdukitError, RequestTimeout
from rdukit.settings import resolve
from rdukit_platform.settings import MAX_CONNECTIONS, MAX_HEADER_BYTES, SILENCE_S

_REASONS: Final = {408: "Request Timeout", 422: "Unprocessable Content", 431: "Request Header Fields Too Large"}
#: Files and sockets that a gateway needs beside its callers' connections.
SPARE_FILES: Final = 512


class GatewayHttpProtocol(HttpToolsProtocol):
    """Uvicorn's, with bounds on headers, on silence and on the number of connections."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._silence_s = resolve(SILENCE_S)
        self._most_header_bytes = resolve(MAX_HEADER_BYTES)
        self._most_connections = choose_connections(
            resolve(MAX_CONNECTIONS), resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        )
        self._timer: asyncio.TimerHandle | None = None
        #: Since when the rest of a request is awaited, by the loop's clock; of a body each part counts. None: not now.
        self._asked_since: float | None = None
        #: Since when the caller has not read what was written. None: it has.
        self._unread_since: float | None = None
        self._is_in_headers = True
        #: Bytes since the last request's end.
        self._header_bytes = 0

    @property
    def idle_since(self) -> float | None:
        """Since when it waits for a request's head; None: a request is under way."""
        return self._asked_since if self._is_in_headers else None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Somebody connected. Beyond the most connections whoever has kept one waiting longest loses it."""
        super().connection_made(transport)
        self._asked_since = self.loop.time()
        self._look_in(self._silence_s)
        if len(self.connections) > self._most_connections:
            # At least this one is idle.
            idle = [each for each in self.connections if isinstance(each, GatewayHttpProtocol) and each.idle_since]
            min(idle, key=lambda each: each.idle_since or 0.0).give_up()

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone."""
        super().connection_lost(exc)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def data_received(self, data: bytes) -> None:
        """Bytes came."""
        if self._is_in_headers:
            self._header_bytes += len(data)
        super().data_received(data)
        if self._is_in_headers and self._header_bytes > self._most_header_bytes and not self.transport.is_closing():
            limit = self._most_header_bytes
            message = f"the request line and headers have more than {limit} bytes (gateway.max_header_bytes)"
            self._refuse(HeadersTooLarge(message, field="headers", limit=limit))

    def on_headers_complete(self) -> None:
        """A request's head has ended; its body begins."""
        self._is_in_headers = False
        self._header_bytes = 0
        self._asked_since = self.loop.time()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A part of its body came."""
        if not self.cycle.response_complete:  # what was answered already has so long for the rest, which nobody wants
            self._asked_since = self.loop.time()
        super().on_body(body)

    def on_message_complete(self) -> None:
        """It has all come. The next one may, once it is answered."""
        super().on_message_complete()
        self._is_in_headers = True
        self._asked_since = self.loop.time() if self.cycle.response_complete else None

    def on_response_complete(self) -> None:
        """It is answered."""
        super().on_response_complete()
        if not self.pipeline:
            self._asked_since = self.loop.time()

    def pause_writing(self) -> None:
        """The caller does not read as fast as is written."""
        super().pause_writing()
        self._unread_since = self.loop.time()

    def resume_writing(self) -> None:
        """It has read."""
        super().resume_writing()
        self._unread_since = None

    def _look_in(self, seconds: float) -> None:
        self._timer = self.loop.call_later(seconds, self._look)

    def _look(self) -> None:
        waiting = [since for since in (self._asked_since, self._unread_since) if since is not None]
        left = self._silence_s if not waiting else min(waiting) + self._silence_s - self.loop.time()
        if left > 0:
            self._look_in(left)
        else:
            self.give_up()

    def give_up(self) -> None:
        """End a connection that nobody uses; who sent half of a request is told."""
        if self._unread_since is not None:
            self.transport.abort()
        elif self._is_in_headers and not self._header_bytes:
            self.transport.close()
        elif not self._is_in_headers and self.cycle.response_started:
            self.transport.abort()
        else:
            self._refuse(
                RequestTimeout(f"the rest of the request did not come within {self._silence_s:g} s", field="request")
            )

    def send_400_response(self, msg: str) -> None:
        """The bytes are no HTTP request."""
        self._refuse(
            MalformedRequest(f"{msg.rstrip('.')}: the bytes are not an HTTP/1.1 request", field="request"), 400
        )

    def _refuse(self, error: RdukitError, status: int = 0) -> None:
        status = status or error.http_status
        body = orjson.dumps(error.body())
        head = (
            f"HTTP/1.1 {status} {_REASONS.get(status, 'Bad Request')}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()


def choose_connections(most: int, files: int) -> int:
    """How many connections are taken at once where a process may have so many open files (pure)."""
    return max(8, min(most, files - SPARE_FILES if files > 2 * SPARE_FILES else files // 2))


def allow_files() -> None:
    """Let this process have as many open files as the system allows it."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
