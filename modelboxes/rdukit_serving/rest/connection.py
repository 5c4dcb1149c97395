"""The HTTP side of a box's connections: guarded as the gateway's are, and plain inferences go the short way."""

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
    """What uvicorn makes for each connection of one server, by the settings.

    Args:
        idle_s: seconds that a connection may idle between two requests.
        hosts: names that the box answers to; None: all.
        tls: as ``make_protocol_factory`` has it.
    """
    limits = HttpLimits(resolve(MAX_HEADER_BYTES), MAX_HEADER_BYTES.name, resolve(SILENCE_S), idle_s)
    protocol = partial(InferenceHttpProtocol, fast_path=fast_path, hosts=hosts)
    return make_protocol_factory(protocol, limits, resolve(MAX_CONNECTIONS), resolve(ADDRESS_CONNECTIONS), tls=tls)


class InferenceHttpProtocol(GuardedHttp, HttpToolsProtocol):
    """Uvicorn's, guarded, with one timer and the fast path (``fast_path``)."""

    flow_control = FlowControl

    def __init__(self, *arguments: Any, fast_path: FastPath, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._fast_path = fast_path
        #: The request under way if it goes the short way.
        self._inference: FastPathRequest | None = None

    def on_message_begin(self) -> None:
        """A request begins. What an application needs to know of it is put together only if it goes to one."""
        self.url = b""
        self.expect_100_continue = False
        self.headers = []

    def begin_request(self) -> None:
        """A request whose head is taken."""
        self._inference = self._short_way()
        if self._inference is None:
            url, headers, expects = self.url, self.headers, self.expect_100_continue
            super().on_message_begin()
            self.url, self.expect_100_continue = url, expects
            self.headers += headers  # in place: the scope has this list
            super().begin_request()
        else:
            self.cycle = cast(RequestResponseCycle, self._inference)
            self._inference.begin()

    def _short_way(self) -> FastPathRequest | None:
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
        return self._fast_path.cycle(self, self.url, parser.get_http_version() != "1.0" and parser.should_keep_alive())

    def on_body(self, body: bytes) -> None:
        """A part of its body came."""
        if self._inference is None:
            super().on_body(body)
        else:
            self._watch.take_body(len(body), self.loop.time())
            self._inference.add(body)

    def on_message_complete(self) -> None:
        """It has all come. The next one may, once it is answered."""
        if self._inference is None:
            super().on_message_complete()
        else:
            self._inference.run()
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

    def _unset_keepalive_if_required(self) -> None:
        """Uvicorn's timer is never set."""

    def error_body(self, error: RdukitError) -> object:
        """The inference protocol has errors of its own form."""
        return {"error": error.message} if self.url.startswith(b"/v2") else super().error_body(error)
