"""``python -m rdukit_platform.gateway [--fd N]``: the gateway process."""

import gc
import os
import socket
import sys
import threading
from typing import Final

import click
import uvicorn

from rdukit.http.tls import find_server_files, make_server_context
from rdukit.settings import resolve
from rdukit.system.allocator import limit_arenas
from rdukit.system.process import configure_logging
from rdukit.telemetry.spans import configure_telemetry
from rdukit_platform.api.context import open_platform
from rdukit_platform.db.migrate import migrate
from rdukit_platform.gateway.app import create_app, forwarding
from rdukit_platform.gateway.http_protocol import allow_files, make_protocol
from rdukit_platform.settings import (
    GATEWAY_HOST,
    GATEWAY_PORT,
    GATEWAY_TLS_CA,
    GATEWAY_TLS_CERTIFICATE,
    GATEWAY_TLS_KEY,
    checked_home,
)
from rdukit_platform.tenants.tokens import ensure_first_token

#: Switch interval of computing threads in seconds; Python's default of 5 ms is long with many threads.
SWITCH_S: Final = 0.0005
#: Arenas of the allocator: of many threads that read large bodies, each would keep some of the freed memory.
ARENAS: Final = 2


@click.command()
@click.option("--fd", type=int, default=None, help="A listening socket that the parent process opened.")
def main(fd: int | None) -> None:
    """Serve REST and the console until SIGTERM."""
    configure_logging()
    configure_telemetry("gateway")
    os.umask(0o077)
    limit_arenas(ARENAS)
    allow_files()
    home = checked_home()
    platform = open_platform(home)
    migrate(platform.database)
    ensure_first_token(platform.database, home, platform.clock.now())
    listener = (
        socket.socket(fileno=fd)
        if fd is not None
        else socket.create_server((resolve(GATEWAY_HOST), resolve(GATEWAY_PORT)), backlog=512)
    )
    tls = find_server_files(
        resolve(GATEWAY_TLS_CERTIFICATE), resolve(GATEWAY_TLS_KEY), resolve(GATEWAY_TLS_CA), "gateway"
    )
    # Threads compute for callers; the event loop, which serves all callers, must get its turn soon.
    sys.setswitchinterval(SWITCH_S)
    # Present objects stay; freezing them keeps garbage collections short.
    gc.collect()
    gc.freeze()
    app = create_app(platform)
    # Built before the first request needs it, because it takes two seconds.
    threading.Thread(target=app.openapi, name="openapi", daemon=True).start()
    config = uvicorn.Config(
        app,
        loop="uvloop",
        http=make_protocol(platform, None if tls is None else make_server_context(tls)),
        ws="none",
        lifespan="on",
        access_log=False,
        log_config=None,
        timeout_graceful_shutdown=2,
        **forwarding(),
    )
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
