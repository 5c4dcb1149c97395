"""The HTTP parser of a box: refuses headers without end, and answers what is no HTTP with the one error body."""

import json
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from rdukit.errors import MalformedRequest, RdukitError
from rdukit.settings import resolve
from rdukit_modelbox.rest.limits import headers_too_large
from rdukit_modelbox.settings import MAX_HEADER_BYTES

_REASONS: Final = {431: "Request Header Fields Too Large", 422: "Unprocessable Content", 400: "Bad Request"}


class BoxHttpProtocol(HttpToolsProtocol):
    """Uvicorn's, with a bound on what a client may send before its headers end."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        #: Bytes that came since the last headers ended, and whether there is an end still to come.
        self._unfinished = 0
        self._is_in_headers = True
        self._limit = resolve(MAX_HEADER_BYTES)

    def on_message_begin(self) -> None:
        """A request begins."""
        self._is_in_headers = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Its headers have ended."""
        self._is_in_headers = False
        self._unfinished = 0
        super().on_headers_complete()

    def data_received(self, data: bytes) -> None:
        """Bytes came."""
        if self._is_in_headers:
            self._unfinished += len(data)
        super().data_received(data)
        if self._is_in_headers and self._unfinished > self._limit and not self.transport.is_closing():
            self._refuse(headers_too_large())

    def on_message_complete(self) -> None:
        """It has all come; the next one may."""
        super().on_message_complete()
        self._is_in_headers = True
        self._unfinished = 0

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
