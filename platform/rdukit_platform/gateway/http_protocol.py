"""The HTTP side of the gateway's connections: who says nothing for long, or reads nothing, does not keep one."""

import asyncio
import resource
import ssl

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from rdukit.http_limits import HttpLimits
from rdukit.http_protocol import GuardedHttp, open_door
from rdukit.settings import resolve
from rdukit_platform.settings import (
    ADDRESS_CONNECTIONS,
    GATEWAY_PROXIES,
    MAX_CONNECTIONS,
    MAX_HEADER_BYTES,
    SILENCE_S,
)


def make_protocol(tls: ssl.SSLContext | None = None) -> type[asyncio.Protocol]:
    """What uvicorn makes for each connection of one server, by the settings; ``tls``: as ``open_door`` has it."""
    silence_s = resolve(SILENCE_S)
    limits = HttpLimits(resolve(MAX_HEADER_BYTES), MAX_HEADER_BYTES.name, silence_s, silence_s)
    most, most_of_one = resolve(MAX_CONNECTIONS), resolve(ADDRESS_CONNECTIONS)
    return open_door(GatewayHttpProtocol, limits, most, most_of_one, resolve(GATEWAY_PROXIES).split(","), tls)


class GatewayHttpProtocol(GuardedHttp, HttpToolsProtocol):
    """Uvicorn's, guarded."""

    flow_control = FlowControl

    def on_response_complete(self) -> None:
        """It is answered."""
        super().on_response_complete()
        if not self.pipeline:
            self._watch.end_answer(self.loop.time())


def allow_files() -> None:
    """Let this process have as many open files as the system allows it."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
