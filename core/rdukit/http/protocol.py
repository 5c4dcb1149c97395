"""The HTTP side of a server's connections: excess ends a connection, and malformed HTTP gets the common error body.
 Gateway and boxes put ``GuardedHttp`` before uvicorn's protocol, which core does not import.

Uvicorn waits for ever for the rest of a request and for a reader, and accepts headers of any length.
``rdukit.http.limits`` and ``rdukit.http.connections`` define the limits.
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
    """Return the protocol factory that uvicorn calls for each connection of one server.

    Args:
        protocol: class of the protocol of an admitted connection.
        max_connections: maximum of simultaneous connections, if the process's limit of open files allows it.
        max_per_address: maximum from one address.
        trusted: proxies, as in ``ConnectionRegistry``.
        tls: None for plain HTTP. The certificate is set here, not in uvicorn.
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
    """HTTP protocol with limits on headers, silence and the number of connections, checked by one timer."""

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
            hosts: names that the server accepts; None: all.
        """
        super().__init__(*arguments, **named)
        self._limits = limits
        self._registry = registry
        self._hosts = hosts
        #: This server's address for applications; each accepted request names its host itself.
        self._server = ("localhost", None)
        self._watch = ConnectionWatch(limits, self.loop.time())
        self._timer: asyncio.TimerHandle | None = None
        #: Reason for which the parser was stopped.
        self._refusal: RdukitError | None = None
        self.url = b""

    @property
    def idle_since(self) -> float | None:
        """The time since which it waits for a request's head; None: a request is under way."""
        return self._watch.idle_since

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Set up a new connection; beyond the maximum, drop the connection that has idled longest."""
        # Replaces uvicorn's method, which queries the system for both ends: most of a connection's cost.
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
        if watch.is_in_head and not watch.head_bytes:  # complete requests arrived
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
        """Record a header; drop trailers."""
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
        """Count and pass on a part of the body."""
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
        """End an unused connection; report the timeout to a caller that has sent a part of a request."""
        watch = self._watch
        self._registry.leave(self)
        if watch.unread_since is not None or watch.is_lingering:
            self.transport.abort()
        elif watch.is_in_head and not watch.head_bytes:
            self._close()
        elif not watch.is_in_head and self.cycle.response_started:
            self.transport.abort()
        else:
            words = f"the rest of the request did not arrive within {self._limits.silence_s:g} s"
            if not watch.is_in_head:
                words += f", nor {MIN_BODY_BYTES_S} bytes of its body a second"
            self._refuse(RequestTimeout(words, field="request"))

    def send_400_response(self, msg: str) -> None:
        """Refuse bytes that are not an HTTP request, or a request that the limits refuse."""
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
        """Close a connection that is no longer counted.

        TLS waits for the caller's close message, and unsent data for a reader, both for a limited time.
        """
        self.transport.close()
        if self.scheme == "https":
            self.loop.call_later(TLS_CLOSE_S, self.transport.abort)
        elif self.transport.get_write_buffer_size():
            self.loop.call_later(LINGER_S, self.transport.abort)
