"""The HTTP side of a server's connections: what is too much of anything ends them, and what is no HTTP gets the one
error body. Gateway and boxes put ``GuardedHttp`` before uvicorn's protocol, which core does not import.

Uvicorn waits for ever for the rest of a request and for a reader, and takes headers of any length. What is too much is
decided in ``rdukit.http.limits`` and ``rdukit.http.connections``.
"""

import asyncio
import json
import resource
import ssl
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast

from rdukit.errors import MalformedRequest, RdukitError, RequestTimeout
from rdukit.http.connections import AdmissionProtocol, ConnectionRegistry, TlsEndpoint, peer_of
from rdukit.http.limits import (
    LINGER_S,
    MIN_BODY_BYTES_S,
    TLS_CLOSE_S,
    ConnectionWatch,
    HostRule,
    HttpLimits,
    check_head,
    choose_connections,
)

if TYPE_CHECKING:
    from uvicorn.protocols.http.flow_control import FlowControl
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol as UvicornHttp
else:
    UvicornHttp = object

_REASONS: Final = {
    400: "Bad Request", 403: "Forbidden", 408: "Request Timeout", 422: "Unprocessable Content",
    431: "Request Header Fields Too Large",
}  # fmt: skip


def make_protocol_factory(
    protocol: "Callable[..., GuardedHttp]",
    limits: HttpLimits,
    max_connections: int,
    max_per_address: int,
    trusted: Iterable[str] = (),
    tls: ssl.SSLContext | None = None,
) -> type[asyncio.Protocol]:
    """Return the factory of protocols that uvicorn calls for each connection of one server.

    Args:
        protocol: made for a connection that is let in.
        max_connections: connections at once, where this process may have so many files.
        max_per_address: of one address.
        trusted: proxies, as ``ConnectionRegistry`` has them.
        tls: None: it speaks plain HTTP. The server itself is given no certificate.
    """
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    registry = ConnectionRegistry(choose_connections(max_connections, files), max_per_address, trusted)
    make = partial(protocol, limits=limits, registry=registry)
    door = None if tls is None else TlsEndpoint(tls, limits.silence_s)

    def at_the_door(**named: Any) -> asyncio.Protocol:
        return AdmissionProtocol(registry, partial(make, **named), door)

    return cast(type[asyncio.Protocol], at_the_door)


class _Refused(Exception):
    """Raised in the parser's callbacks: the request is refused."""


class GuardedHttp(UvicornHttp):
    """Bounds on headers, on silence and on the number of connections, watched by one timer."""

    #: Uvicorn's.
    flow_control: "ClassVar[type[FlowControl]]"

    def __init__(
        self,
        *arguments: Any,
        limits: HttpLimits,
        registry: ConnectionRegistry,
        hosts: HostRule | None = None,
        **named: Any,
    ) -> None:
        """
        Args:
            hosts: names that the server answers to; None: all.
        """
        super().__init__(*arguments, **named)
        self._limits = limits
        self._registry = registry
        self._hosts = hosts
        #: Where this server is, as applications are told; every request of ours names its host itself.
        self._server = ("localhost", None)
        self._watch = ConnectionWatch(limits, self.loop.time())
        self._timer: asyncio.TimerHandle | None = None
        #: Why the parser was stopped.
        self._refusal: RdukitError | None = None
        self.url = b""

    @property
    def idle_since(self) -> float | None:
        """The time since which it waits for a request's head; None: a request is under way."""
        return self._watch.idle_since

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Set up a new connection; beyond the maximum the one that has idled longest is dropped."""
        # As uvicorn does, which makes a socket object to ask the system for both ends: most of a connection's cost.
        self.connections.add(self)
        self.transport, self.flow = transport, self.flow_control(transport)
        self.client, self.server = peer_of(transport), self._server
        self.scheme = "https" if transport.get_extra_info("sslcontext") else "http"
        self._look_in(self._watch.seconds_left(self.loop.time()))
        chosen = self._registry.enter(self, self.client[0] if self.client else None)
        if chosen is not None:
            chosen.give_up()

    def connection_lost(self, exc: Exception | None) -> None:
        """Clean up after the connection."""
        super().connection_lost(exc)
        self._registry.leave(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def data_received(self, data: bytes) -> None:
        """Feed received bytes to the parser, and enforce the limits."""
        watch = self._watch
        watch.count(len(data))
        super().data_received(data)
        if watch.is_in_head and not watch.head_bytes:  # whole requests came
            return
        if self.transport.is_closing():
            return
        if watch.is_over:
            self.transport.abort()
        elif (refusal := watch.refusal()) is not None:
            self._refuse(refusal)
        elif watch.is_in_head:
            for each in self._registry.hold(self, watch.head_bytes):
                each.give_up()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header; drop those after a body."""
        if self._watch.is_in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Check a request's head and begin its body."""
        self._registry.release(self)
        version = self.parser.get_http_version()
        self._refusal = check_head(self._limits, len(self.url), version, self.headers, self._hosts)
        if self._refusal is not None:
            raise _Refused
        self._watch.begin_body(self.loop.time())
        self.begin_request()

    def begin_request(self) -> None:
        """Begin a request whose head is accepted."""
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Take a part of the body."""
        self._watch.take_body(len(body), self.loop.time())
        super().on_body(body)

    def on_message_complete(self) -> None:
        """End the request; the next one may come once it is answered."""
        super().on_message_complete()
        self._watch.end_request(self.loop.time(), self.cycle.response_complete)

    def pause_writing(self) -> None:
        """Note that the caller reads slower than the server writes."""
        super().pause_writing()
        self._watch.unread_since = self.loop.time()

    def resume_writing(self) -> None:
        """Note that the caller has caught up."""
        super().resume_writing()
        self._watch.unread_since = None

    def _look_in(self, seconds: float) -> None:
        self._timer = self.loop.call_later(seconds, self._look)

    def _look(self) -> None:
        if self.flow.read_paused:
            self._watch.excuse(self.loop.time())
        left = self._watch.seconds_left(self.loop.time())
        if left > 0:
            self._look_in(left)
        else:
            self.give_up()

    def give_up(self) -> None:
        """End a connection that nobody uses; who sent half of a request is told."""
        watch = self._watch
        self._registry.leave(self)
        if watch.unread_since is not None or watch.is_lingering:
            self.transport.abort()
        elif watch.is_in_head and not watch.head_bytes:
            self._close()
        elif not watch.is_in_head and self.cycle.response_started:
            self.transport.abort()
        else:
            words = f"the rest of the request did not come within {self._limits.silence_s:g} s"
            if not watch.is_in_head:
                words += f", nor {MIN_BODY_BYTES_S} bytes of its body a second"
            self._refuse(RequestTimeout(words, field="request"))

    def send_400_response(self, msg: str) -> None:
        """Refuse bytes that are no HTTP request, or one that is not accepted."""
        refusal, self._refusal = self._refusal, None
        if refusal is None:
            words = f"{msg.rstrip('.')}: the bytes are not an HTTP/1.1 request"
            refusal = MalformedRequest(words, field="request")
        self._refuse(refusal, 400 if isinstance(refusal, MalformedRequest) else 0)

    def error_body(self, error: RdukitError) -> object:
        """Return the JSON body for a refused request."""
        return error.body()

    def note_refusal(self, error: RdukitError) -> None:
        """Log a refusal that no application sees; servers override it."""

    def _refuse(self, error: RdukitError, status: int = 0) -> None:
        status = status or error.http_status
        body = json.dumps(self.error_body(error)).encode()
        head = (
            f"HTTP/1.1 {status} {_REASONS[status]}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self._close()
        self.note_refusal(error)

    def _close(self) -> None:
        """End a connection that counts no more: TLS waits for the caller's word, and what is not read yet for a reader,
        but not for long.
        """
        self.transport.close()
        if self.scheme == "https":
            self.loop.call_later(TLS_CLOSE_S, self.transport.abort)
        elif self.transport.get_write_buffer_size():
            self.loop.call_later(LINGER_S, self.transport.abort)
