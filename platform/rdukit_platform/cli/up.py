"""``rdukit up``: the platform on this machine."""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from rdukit.settings import resolve
from rdukit_platform.settings import GATEWAY_HOST, GATEWAY_PORT, checked_home

if TYPE_CHECKING:
    from rdukit_platform.up.run import Running


@click.command()
@click.option("--port", type=click.IntRange(0, 65535), default=None, help="Port to listen on; 0 takes a free one.")
@click.option("--host", default=None, help="Address to listen on (default 127.0.0.1).")
@click.option("--json", "as_json", is_flag=True, help="Print the addresses as one line of JSON.")
def up(port: int | None, host: str | None, as_json: bool) -> None:
    """Start the platform on this machine and keep it running until Ctrl-C.

    Broker, node daemon, gateway, scheduler and worker run as child processes; their state is in $RDUKIT_HOME.

    Example: rdukit up --port 8080
    """
    from rdukit_platform.up.run import run_platform

    def announce(running: "Running") -> None:
        if as_json:
            click.echo(json.dumps(asdict(running)))
            return
        click.echo(f"ready in {running.ready_s} s")
        click.echo(f"REST      {running.url}   (OpenAPI: {running.docs})")
        click.echo(f"console   {running.console}")
        click.echo(f"token     {running.token_file}")
        click.echo(f"home      {running.home}")
        click.echo("stop with Ctrl-C")

    run_platform(checked_home(), resolve(GATEWAY_HOST, host), resolve(GATEWAY_PORT, port), announce)
