"""HTTP connections of a server: guarded as the gateway's are, and plain inferences take the fast path."""

import asyncio
import ssl
from functools import partial
from typing import Any, cast

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from rdukit.errors import RdukitError
from rdukit.http.limits import HostRule, HttpLimits
from rdukit.http.protocol import GuardedHttp, make_protocol_factory
from rdukit.settings import resolve
from rdukit_serving.settings import ADDRESS_CONNECTIONS, MAX_CONNECTIONS, MAX_HEADER_BYTES, SILENCE_S
from rdukit_serving.tuning.fast_path import FastPath, FastPathRequest


def make_protocol(
    fast_path: FastPath, idle_s: float = 5.0, hosts: HostRule | None = None, tls: ssl.SSLContext | None = None
) -> type[asyncio.Protocol]:
    """Return the protocol class of one server's connections, by the settings.

    Args:
        idle_s: seconds that a connection may idle between two requests.
        hosts: names that the box answers to; None: all.
        tls: as ``make_protocol_factory`` has it.
    """
    limits = HttpLimits(resolve(MAX_HEADER_BYTES), MAX_HEADER_BYTES.name, resolve(SILENCE_S), idle_s)
    protocol = partial(InferenceHttpProtocol, fast_path=fast_path, hosts=hosts)
    return make_protocol_factory(protocol, limits, resolve(MAX_CONNECTIONS), resolve(ADDRESS_CONNECTIONS), tls=tls)


class InferenceHttpProtocol(GuardedHttp, HttpToolsProtocol):
    """Uvicorn's protocol, guarded, with one timer and the fast path (``fast_path``)."""

    flow_control = FlowControl

    def __init__(self, *arguments: Any, fast_path: FastPath, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._fast_path = fast_path
        #: The request under way if it takes the fast path.
        self._inference: FastPathRequest | None = None

    def on_message_begin(self) -> None:
        """Begin a request. An application's scope is built only if the request goes to one."""
        self.url = b""
        self.expect_100_continue = False
        self.headers = []

    def begin_request(self) -> None:
        """Route a request whose head is complete."""
        self._inference = self._find_fast_path()
        if self._inference is None:
            url, headers, expects = self.url, self.headers, self.expect_100_continue
            super().on_message_begin()
            self.url, self.expect_100_continue = url, expects
            self.headers += headers  # in place: the scope has this list
            super().begin_request()
        else:
            self.cycle = cast(RequestResponseCycle, self._inference)
            self._inference.begin()

    def _find_fast_path(self) -> FastPathRequest | None:
        """Return the fast path of a plain inference on an idle connection; otherwise None."""
        parser, former = self.parser, self.cycle
        if (
            parser.get_method() != b"POST"
            or self.expect_100_continue
            or self.flow.write_paused
            or parser.should_upgrade()
            or (former is not None and not former.response_complete)
        ):
            return None
        return self._fast_path.cycle(self, self.url, parser.get_http_version() != "1.0" and parser.should_keep_alive())

    def on_body(self, body: bytes) -> None:
        """Take a part of the body."""
        if self._inference is None:
            super().on_body(body)
        else:
            self._watch.take_body(len(body), self.loop.time())
            self._inference.add(body)

    def on_message_complete(self) -> None:
        """Handle the complete request. The next one may come once it is answered."""
        if self._inference is None:
            super().on_message_complete()
        else:
            self._inference.run()
            self._watch.end_request(self.loop.time(), self.cycle.response_complete)

    def on_response_complete(self) -> None:
        """Accept the next request.

        Uvicorn sets a timer at each response and cancels it at each request; here one timer looks now and then.
        """
        if self.pipeline:
            super().on_response_complete()
            return
        self.server_state.total_requests += 1
        if not self.transport.is_closing():
            self.flow.resume_reading()
            self._watch.end_answer(self.loop.time())

    def _unset_keepalive_if_required(self) -> None:
        """Do nothing: uvicorn's timer is never set."""

    def error_body(self, error: RdukitError) -> object:
        """Return the error's body; the inference protocol has a form of its own."""
        return {"error": error.message} if self.url.startswith(b"/v2") else super().error_body(error)
