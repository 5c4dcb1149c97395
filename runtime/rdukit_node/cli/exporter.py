"""``sambanova_exporter``: the node's figures for Prometheus, as a process of its own.

Source: runtime reference 6.5.
"""

import signal
import threading
from dataclasses import replace
from pathlib import Path

import click

from rdukit import __version__
from rdukit.cli import run_command
from rdukit.files.atomic import write_json_atomic
from rdukit.interfaces import SystemClock
from rdukit.system.process import configure_logging
from rdukit.telemetry.spans import name_service
from rdukit_node.cli.output import connect, node_options
from rdukit_node.telemetry.exporter import COLLECTORS
from rdukit_node.telemetry.exporter_process import (
    FILE_VARIABLE,
    NodeCollector,
    default_file,
    read_settings,
    serve,
    switch,
)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="sambanova_exporter")
@click.option(
    "-c",
    "--config",
    "config_file",
    envvar=FILE_VARIABLE,
    type=click.Path(path_type=Path),
    default=None,
    metavar="FILE",
    help=f"Configuration file (default: ${FILE_VARIABLE}, else sambanova_exporter.conf in the home folder); ignored "
    "if missing.",
)
@click.option("--port", type=click.IntRange(0, 65535), default=None, help="Port (default 9101; 0: any free port).")
@click.option("--address", default=None, help="Address to listen on (default 127.0.0.1).")
@click.option(
    "--collector", "wanted", multiple=True, type=click.Choice(COLLECTORS), help="Run only this collector (repeatable)."
)
@click.option("--no-collector", "unwanted", multiple=True, type=click.Choice(COLLECTORS), help="Not these.")
@click.option("--announce", type=click.Path(path_type=Path), default=None, help="Write a JSON file here when ready.")
@node_options
def exporter(
    config_file: Path | None,
    port: int | None,
    address: str | None,
    wanted: tuple[str, ...],
    unwanted: tuple[str, ...],
    announce: Path | None,
    socket_file: Path | None,
) -> None:
    """Serve the node's figures to Prometheus until Ctrl-C or SIGTERM.

    While the node daemon does not answer, rdukit_node_up is 0 and nothing else is exported.

    Example: sambanova_exporter -c sambanova_exporter.conf --no-collector lease

    Example: sambanova_exporter --port 9102
    """
    configure_logging(None)
    name_service("exporter")
    settings = read_settings(config_file or default_file())
    settings = replace(
        settings,
        http_port=settings.http_port if port is None else port,
        http_address=address or settings.http_address,
    )
    switches = {name: name in wanted for name in COLLECTORS} if wanted else {}
    settings = switch(settings, {**switches, **dict.fromkeys(unwanted, False)})
    collector = NodeCollector(lambda: connect(socket_file), SystemClock(), settings.collectors)
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    server = serve(settings, collector)
    url = f"http://{settings.http_address}:{server.server_port}/metrics"
    if announce is not None:
        write_json_atomic(announce, {"url": url})
    click.echo(f"exporter ready: {url} collectors={','.join(settings.collectors)}")
    stopped.wait()
    server.shutdown()
    server.server_close()
    collector.close()
    click.echo("exporter stopped", err=True)


def main() -> None:
    """Entry point of the command."""
    run_command(exporter)


if __name__ == "__main__":
    main()
