"""The HTTP side of a box's connections: headers have an end, what is no HTTP gets the one error body, and plain
inferences go the short way.
"""

import json
from typing import Any, Final, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from rdukit.errors import MalformedRequest, RdukitError
from rdukit.settings import resolve
from rdukit_modelbox.rest.limits import headers_too_large
from rdukit_modelbox.serving.infer_lane import InferCycle, InferLane
from rdukit_modelbox.settings import MAX_HEADER_BYTES

_REASONS: Final = {431: "Request Header Fields Too Large", 422: "Unprocessable Content", 400: "Bad Request"}


class BoxHttpProtocol(HttpToolsProtocol):
    """Uvicorn's, with a bound on headers, one timer for idling, and the short way (``infer_lane``)."""

    def __init__(self, *arguments: Any, lane: InferLane, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._lane = lane
        #: The request under way if it goes the short way.
        self._inference: InferCycle | None = None
        #: Bytes that came since the last headers ended, and whether there is an end still to come.
        self._unfinished = 0
        self._is_in_headers = True
        self._limit = resolve(MAX_HEADER_BYTES)
        #: When the last response ended, by the loop's clock; None: something has come since.
        self._idle_since: float | None = None

    def on_message_begin(self) -> None:
        """A request begins. What an application needs to know of it is put together only if it goes to one."""
        self._is_in_headers = True
        self.url = b""
        self.expect_100_continue = False
        self.headers = []

    def on_headers_complete(self) -> None:
        """Its headers have ended."""
        self._is_in_headers = False
        self._unfinished = 0
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
        if self._inference is not None:
            self._inference.add(body)
        else:
            super().on_body(body)

    def data_received(self, data: bytes) -> None:
        """Bytes came."""
        if self._is_in_headers:
            self._unfinished += len(data)
        super().data_received(data)
        if self._is_in_headers and self._unfinished > self._limit and not self.transport.is_closing():
            self._refuse(headers_too_large())

    def on_message_complete(self) -> None:
        """It has all come; the next one may."""
        if self._inference is not None:
            self._inference.run()
        else:
            super().on_message_complete()
        self._is_in_headers = True
        self._unfinished = 0

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
            self._idle_since = self.loop.time()
            if self.timeout_keep_alive_task is None:
                self._look_in(self.timeout_keep_alive)

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone."""
        super().connection_lost(exc)
        if self.timeout_keep_alive_task is not None:
            self.timeout_keep_alive_task.cancel()
            self.timeout_keep_alive_task = None

    def _unset_keepalive_if_required(self) -> None:
        self._idle_since = None

    def _look_in(self, seconds: float) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(seconds, self._look_idle)

    def _look_idle(self) -> None:
        since = self._idle_since
        left = self.timeout_keep_alive if since is None else since + self.timeout_keep_alive - self.loop.time()
        if left > 0:
            self._look_in(left)
        else:
            self.timeout_keep_alive_task = None
            self.timeout_keep_alive_handler()

    def send_400_response(self, msg: str) -> None:
        """The bytes are no HTTP request."""
        error = MalformedRequest(f"{msg.rstrip('.')}: the bytes are not an HTTP/1.1 request", field="request")
        self._refuse(error, 400)

    def _refuse(self, error: RdukitError, status: int = 0) -> None:
        status = status or error.http_status
        body = json.dumps(error.body()).encode()
        head = (
            f"HTTP/1.1 {status} {_REASONS[status]}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()
