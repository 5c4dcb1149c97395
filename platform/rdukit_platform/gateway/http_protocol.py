"""The HTTP side of the gateway's connections: callers that send or read nothing for long lose theirs."""

import asyncio
import resource
import ssl
from functools import partial
from typing import Any

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from rdukit.errors import RdukitError
from rdukit.http.limits import HttpLimits
from rdukit.http.protocol import GuardedHttp, make_protocol_factory
from rdukit.settings import resolve
from rdukit_platform.api.audit_requests import note_refused_bytes
from rdukit_platform.api.context import Platform
from rdukit_platform.audit.service import MAX_TEXT
from rdukit_platform.settings import (
    ADDRESS_CONNECTIONS,
    GATEWAY_PROXIES,
    MAX_CONNECTIONS,
    MAX_HEADER_BYTES,
    SILENCE_S,
)


def make_protocol(platform: Platform, tls: ssl.SSLContext | None = None) -> type[asyncio.Protocol]:
    """Return the factory of this server's connections by the settings; ``tls`` as in ``make_protocol_factory``."""
    silence_s = resolve(SILENCE_S)
    limits = HttpLimits(resolve(MAX_HEADER_BYTES), MAX_HEADER_BYTES.name, silence_s, silence_s)
    max_connections, max_per_address = resolve(MAX_CONNECTIONS), resolve(ADDRESS_CONNECTIONS)
    protocol = partial(GatewayHttpProtocol, platform=platform)
    return make_protocol_factory(
        protocol, limits, max_connections, max_per_address, resolve(GATEWAY_PROXIES).split(","), tls
    )


class GatewayHttpProtocol(GuardedHttp, HttpToolsProtocol):
    """Uvicorn's protocol with guards; refusals are recorded in the audit log."""

    flow_control = FlowControl

    def __init__(self, *arguments: Any, platform: Platform, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._platform = platform

    def on_response_complete(self) -> None:
        """Record that the request is answered."""
        super().on_response_complete()
        if not self.pipeline:
            self._watch.end_answer(self.loop.time())

    def note_refusal(self, error: RdukitError) -> None:
        """Record method and path as far as received, without the query, which may be secret."""
        path = self.url.partition(b"?")[0][: MAX_TEXT + 1].decode("latin-1")
        target = f"{self.parser.get_method().decode()} {path}" if path else ""
        note_refused_bytes(self._platform, self.client[0] if self.client else "", target, error)


def allow_files() -> None:
    """Raise this process's limit of open files to the system's maximum."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
