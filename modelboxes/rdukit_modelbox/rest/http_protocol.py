"""The HTTP side of a box's connections: what is too much of anything ends them, what is no HTTP gets the one error
body, and plain inferences go the short way.

What is too much is decided in ``rdukit.http_limits`` and ``rdukit.http_connections``, for the platform's gateway too.
"""

import asyncio
import json
import resource
from functools import partial
from typing import Any, Final, cast

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from rdukit.errors import MalformedRequest, RdukitError, RequestTimeout
from rdukit.http_connections import ConnectionBook, Doorstep, peer_of
from rdukit.http_limits import ConnectionWatch, HostRule, HttpLimits, check_head, choose_connections
from rdukit.settings import resolve
from rdukit_modelbox.serving.infer_lane import InferCycle, InferLane
from rdukit_modelbox.settings import ADDRESS_CONNECTIONS, MAX_CONNECTIONS, MAX_HEADER_BYTES, SILENCE_S

_REASONS: Final = {
    400: "Bad Request", 403: "Forbidden", 408: "Request Timeout", 422: "Unprocessable Content",
    431: "Request Header Fields Too Large",
}  # fmt: skip


def make_protocol(lane: InferLane, idle_s: float = 5.0, hosts: HostRule | None = None) -> type[asyncio.Protocol]:
    """What uvicorn makes for each connection of one server, by the settings.

    Args:
        idle_s: seconds that a connection may idle between two requests.
        hosts: names that the box answers to; None: all.
    """
    limits = HttpLimits(resolve(MAX_HEADER_BYTES), MAX_HEADER_BYTES.name, resolve(SILENCE_S), idle_s)
    most = choose_connections(resolve(MAX_CONNECTIONS), resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    book = ConnectionBook[BoxHttpProtocol](most, resolve(ADDRESS_CONNECTIONS))
    make = partial(BoxHttpProtocol, lane=lane, limits=limits, book=book, hosts=hosts)

    def at_the_door(**named: Any) -> asyncio.Protocol:
        return Doorstep(book.is_full_for, partial(make, **named))

    return cast(type[asyncio.Protocol], at_the_door)


class _Refused(Exception):
    """In the parser's callbacks: the request is not taken."""


class BoxHttpProtocol(HttpToolsProtocol):
    """Uvicorn's, with bounds on headers, silence and connections, one timer, and the short way (``infer_lane``)."""

    def __init__(
        self,
        *arguments: Any,
        lane: InferLane,
        limits: HttpLimits,
        book: "ConnectionBook[BoxHttpProtocol]",
        hosts: HostRule | None,
        **named: Any,
    ) -> None:
        super().__init__(*arguments, **named)
        self._lane = lane
        self._limits = limits
        self._book = book
        #: Where this server is, as applications are told; every request of ours names its host itself.
        self._server = ("localhost", None)
        self._hosts = hosts
        self._watch = ConnectionWatch(limits, self.loop.time())
        self.url = b""
        #: The request under way if it goes the short way.
        self._inference: InferCycle | None = None
        self._timer: asyncio.TimerHandle | None = None
        #: Why the parser was stopped.
        self._refusal: RdukitError | None = None

    @property
    def idle_since(self) -> float | None:
        """Since when it waits for a request's head; None: a request is under way."""
        return self._watch.idle_since

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Somebody connected. Beyond the most connections whoever has kept one waiting longest loses it."""
        # As uvicorn does, which makes a socket object to ask the system for both ends: most of a connection's cost.
        self.connections.add(self)
        self.transport, self.flow = transport, FlowControl(transport)
        self.client, self.server = peer_of(transport), self._server
        self.scheme = "https" if transport.get_extra_info("sslcontext") else "http"
        self._look_in(self._watch.seconds_left(self.loop.time()))
        chosen = self._book.enter(self, self.client[0] if self.client else None)
        if chosen is not None:
            chosen.give_up()

    def on_message_begin(self) -> None:
        """A request begins. What an application needs to know of it is put together only if it goes to one."""
        self.url = b""
        self.expect_100_continue = False
        self.headers = []

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header came; those behind a body are dropped."""
        if self._watch.is_in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Its headers have ended."""
        version = self.parser.get_http_version()
        self._refusal = check_head(self._limits, len(self.url), version, self.headers, self._hosts)
        if self._refusal is not None:
            raise _Refused
        self._watch.begin_body(self.loop.time())
        self._inference = self._short_way()
        if self._inference is None:
            url, headers, expects = self.url, self.headers, self.expect_100_continue
            super().on_message_begin()
            self.url, self.expect_100_continue = url, expects
            self.headers += headers  # in place: the scope has this list
            super().on_headers_complete()
        else:
            self.cycle = cast(RequestResponseCycle, self._inference)
            self._inference.begin()

    def _short_way(self) -> InferCycle | None:
        """For a plain inference on an idle connection."""
        parser, former = self.parser, self.cycle
        if (
            parser.get_method() != b"POST"
            or self.expect_100_continue
            or self.flow.write_paused
            or parser.should_upgrade()
            or (former is not None and not former.response_complete)
        ):
            return None
        return self._lane.cycle(self, self.url, parser.get_http_version() != "1.0" and parser.should_keep_alive())

    def on_body(self, body: bytes) -> None:
        """A part of its body came."""
        self._watch.take_body(len(body), self.loop.time())
        if self._inference is not None:
            self._inference.add(body)
        else:
            super().on_body(body)

    def data_received(self, data: bytes) -> None:
        """Bytes came."""
        watch = self._watch
        watch.count(len(data))
        super().data_received(data)
        if watch.is_in_head and not watch.head_bytes:  # whole requests came
            return
        self._look_at_rest()

    def _look_at_rest(self) -> None:
        watch = self._watch
        if self.transport.is_closing():
            return
        if watch.is_over:
            self.transport.abort()
        elif (refusal := watch.refusal()) is not None:
            self._refuse(refusal)
        elif watch.is_in_head:
            for each in self._book.hold(self, watch.head_bytes):
                each.give_up()
        else:
            self._book.release(self)

    def on_message_complete(self) -> None:
        """It has all come; the next one may."""
        if self._inference is not None:
            self._inference.run()
        else:
            super().on_message_complete()
        self._watch.end_request(self.loop.time(), self.cycle.response_complete)

    def on_response_complete(self) -> None:
        """The next request may come.

        Uvicorn sets a timer at each response and cancels it at each request; here one timer looks now and then.
        """
        if self.pipeline:
            super().on_response_complete()
            return
        self.server_state.total_requests += 1
        if not self.transport.is_closing():
            self.flow.resume_reading()
            self._watch.end_answer(self.loop.time())

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone."""
        super().connection_lost(exc)
        self._book.leave(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def pause_writing(self) -> None:
        """The caller does not read as fast as is written."""
        super().pause_writing()
        self._watch.unread_since = self.loop.time()

    def resume_writing(self) -> None:
        """It has read."""
        super().resume_writing()
        self._watch.unread_since = None

    def _unset_keepalive_if_required(self) -> None:
        """Uvicorn's timer is never set."""

    def _look_in(self, seconds: float) -> None:
        self._timer = self.loop.call_later(seconds, self._look)

    def _look(self) -> None:
        left = self._watch.seconds_left(self.loop.time())
        if left > 0:
            self._look_in(left)
        else:
            self.give_up()

    def give_up(self) -> None:
        """End a connection that nobody uses; who sent half of a request is told."""
        watch = self._watch
        self._book.leave(self)
        if watch.unread_since is not None or watch.is_lingering:
            self.transport.abort()
        elif watch.is_in_head and not watch.head_bytes:
            self.transport.close()
        elif not watch.is_in_head and self._inference is None and self.cycle.response_started:
            self.transport.abort()
        else:
            seconds = self._limits.silence_s
            self._refuse(RequestTimeout(f"the rest of the request did not come within {seconds:g} s", field="request"))

    def send_400_response(self, msg: str) -> None:
        """The bytes are no HTTP request, or one that is not taken."""
        refusal, self._refusal = self._refusal, None
        if refusal is None:
            words = f"{msg.rstrip('.')}: the bytes are not an HTTP/1.1 request"
            refusal = MalformedRequest(words, field="request")
        self._refuse(refusal, 400 if isinstance(refusal, MalformedRequest) else 0)

    def _refuse(self, error: RdukitError, status: int = 0) -> None:
        status = status or error.http_status
        # The inference protocol has errors of its own form.
        is_inference = self.url.startswith(b"/v2")
        body = json.dumps({"error": error.message} if is_inference else error.body()).encode()
        head = (
            f"HTTP/1.1 {status} {_REASONS[status]}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()
