"""``python -m rdukit_platform.gateway [--fd N]``: the gateway process."""

import socket

import click
import uvicorn

from rdukit.logs import configure_logging
from rdukit.settings import resolve
from rdukit_platform.context import open_platform
from rdukit_platform.db.migrate import migrate
from rdukit_platform.gateway.app import create_app
from rdukit_platform.gateway.http_protocol import GatewayHttpProtocol, allow_files
from rdukit_platform.settings import GATEWAY_HOST, GATEWAY_PORT, checked_home
from rdukit_platform.tenants.service import ensure_first_token


@click.command()
@click.option("--fd", type=int, default=None, help="A listening socket that the parent process opened.")
def main(fd: int | None) -> None:
    """Serve REST and the console until SIGTERM."""
    configure_logging()
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
    config = uvicorn.Config(
        create_app(platform),
        loop="uvloop",
        http=GatewayHttpProtocol,
        ws="none",
        lifespan="on",
        access_log=False,
        log_config=None,
        timeout_graceful_shutdown=2,
    )
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
