"""``rdukit node``: run a node daemon, show it, install it as a service.

Commands import the daemon and the installation only when needed, because the imports take longer than a status request.
"""

import contextlib
import json
import logging
import os
import sys
from pathlib import Path
from typing import Final

import click

from rdukit.cli.commands import ExtensibleGroup
from rdukit.cli.tables import screen_width
from rdukit.hardware import NODES, find_node
from rdukit.interfaces import SystemClock
from rdukit.settings import JSON, LOG_FORMAT, resolve
from rdukit.snd import SndClient
from rdukit.telemetry.spans import name_service
from rdukit_node.cli.output import node_options, socket_option
from rdukit_node.cli.slurm_node import slurm
from rdukit_node.cli.status_text import event_line, of_job, status_lines
from rdukit_node.cli.top import top
from rdukit_node.settings import PLATFORM, SND_MAX_APPLICATIONS, SND_NAME, SNML_PORT, socket_mode, socket_path


@click.command()
@click.argument("root", type=click.Path(path_type=Path, file_okay=False))
@click.option("--platform", default=None, help=f"One of {', '.join(NODES)} (default {PLATFORM.default}).")
@click.option("--uninstall", is_flag=True, help="Remove only files that this command installed.")
@click.option("--json", "as_json", is_flag=True, help="Print the changes as JSON.")
def install(root: Path, platform: str | None, uninstall: bool, as_json: bool) -> None:
    """Install tools, units, folders and databases where programs and containers expect them.

    ROOT is the prefix of all paths: / for this machine (needs root), or any folder. Existing files that are not this
    command's are never touched. With / the service is then started by: systemctl enable --now snd

    Example: rdukit node install /srv/node0 --platform SN30-8

    Example: rdukit node install /srv/node0 --uninstall
    """
    from rdukit_node.install import install as installation

    root = Path(os.path.abspath(root))
    if uninstall:
        changes = installation.uninstall(root)
    else:
        from rdukit_node.install.plan import plan_installation  # protobuf: the other commands do without

        spec = find_node(resolve(PLATFORM, platform))
        changes = installation.install(root, plan_installation(root, Path(sys.executable), spec))
    if as_json:
        click.echo(json.dumps({"root": str(root), **changes.as_json()}, sort_keys=True))
        return
    for verb, paths in changes.as_json().items():
        if verb != "unchanged":
            for path in paths:
                click.echo(f"{verb:8} {root / path}")
    counts = ", ".join(f"{len(paths)} {verb}" for verb, paths in changes.as_json().items() if paths)
    click.echo(f"{'uninstalled' if uninstall else 'installed'} under {root}: {counts or 'nothing to do'}", err=True)


@click.command()
@click.argument("root", type=click.Path(path_type=Path, file_okay=False), default=Path("/"))
@click.option("--exporter", is_flag=True, help="Use the exporter's unit instead of the daemon's.")
def unit(root: Path, exporter: bool) -> None:
    """Print the systemd unit of the node daemon. ROOT [default: /] is the prefix of its paths.

    Example: rdukit node unit > /etc/systemd/system/snd.service

    Example: rdukit node unit --exporter
    """
    from rdukit_node.install.plan import UnitPlaces, exporter_unit, snd_unit

    places = UnitPlaces(Path(os.path.abspath(root)), Path(sys.executable))
    click.echo(exporter_unit(places) if exporter else snd_unit(places), nl=False)


logger = logging.getLogger(__name__)

_FOLLOW_EVERY_S: Final = 0.25


@click.group(cls=ExtensibleGroup, extended_by="rdukit.node.commands")
def node() -> None:
    """Run and inspect emulated nodes.

    Example: rdukit node start --platform SN30-8

    Example: rdukit node start --platform SN40L-16 --name blade-7
    """


node.add_command(install)
node.add_command(slurm)
node.add_command(top)
node.add_command(unit)


@node.command()
@click.option("--platform", default=None, help=f"One of {', '.join(NODES)} (default {PLATFORM.default}).")
@socket_option
@click.option("--name", default=None, help="Name of the node (default: the host's name).")
@click.option(
    "--max-applications", type=int, default=None, help="Concurrent applications (default: the platform's limit)."
)
@click.option("--state", type=click.Path(path_type=Path), default=None, help="Folder of the database and the logs.")
@click.option("--snml-port", type=click.IntRange(-1, 65535), default=None, help="SNML's loopback port; -1: none.")
@click.option("--no-snml", is_flag=True, help="Run without the gRPC management interface.")
@click.option("--announce", type=click.Path(path_type=Path), default=None, help="Write a JSON file here when ready.")
@click.option("--with-parent", is_flag=True, help="Stop when the parent process ends.")
def start(
    platform: str | None,
    socket_file: Path | None,
    name: str | None,
    max_applications: int | None,
    state: Path | None,
    snml_port: int | None,
    no_snml: bool,
    announce: Path | None,
    with_parent: bool,
) -> None:
    """Run the node daemon in the foreground until Ctrl-C or SIGTERM.

    Example: rdukit node start --platform SN10-8 --announce node.json

    Example: rdukit node start --platform SN40L-16 --name blade-7
    """
    from rdukit_node.daemon.run import NodeOptions, node_name, run_node

    name_service("snd")
    options = NodeOptions(
        platform=find_node(resolve(PLATFORM, platform)),
        name=node_name(resolve(SND_NAME, name)),
        max_applications=resolve(SND_MAX_APPLICATIONS, max_applications) or None,
        socket=socket_file,
        state=state,
        snml_port=resolve(SNML_PORT, snml_port),
        socket_mode=socket_mode(),
        announce=announce,
        with_parent=with_parent,
        with_snml=not no_snml,
    )
    if resolve(LOG_FORMAT) == JSON:  # the log has the same, as JSON objects
        run_node(options, lambda line: None)
    else:
        click.echo(f"snd stopped: {run_node(options, click.echo)}", err=True)


@node.command()
@node_options
@click.option("--job", metavar="ID", help="Show only leases and requests of this job.")
@click.option("--json", "as_json", is_flag=True, help="Print the daemon's answer as JSON.")
def status(socket_file: Path | None, job: str | None, as_json: bool) -> None:
    """Show a running node: its tiles and their holders.

    Example: rdukit node status --json

    Example: rdukit node status --job slurm-17
    """
    with SndClient(socket_path(socket_file)) as client:
        answer = dict(client.status())
    answer.pop("ok", None)
    if job is not None:
        answer = of_job(answer, job)
    if as_json:
        click.echo(json.dumps(answer, indent=2, sort_keys=True))
        return
    click.echo("\n".join(status_lines(answer, SystemClock().now(), screen_width())))


@node.command()
@node_options
@click.option("--since", type=click.IntRange(min=0), default=0, help="Show only events after this sequence number.")
@click.option("--job", metavar="ID", help="Show only events of this job.")
@click.option("--follow", is_flag=True, help="Follow until Ctrl-C.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
def events(socket_file: Path | None, since: int, job: str | None, follow: bool, as_json: bool) -> None:
    """List a running node's events: grants, releases, deaths, refusals.

    Example: rdukit node events --follow

    Example: rdukit node events --job job-7k2m9x41abcd --json
    """
    clock = SystemClock()
    # Ctrl-C ends --follow.
    with SndClient(socket_path(socket_file)) as client, contextlib.suppress(*([KeyboardInterrupt] if follow else [])):
        while True:
            answer = client.call("events", since=since)
            for event in answer["events"]:
                if job is None or event["job"] == job:
                    click.echo(json.dumps(event, sort_keys=True) if as_json else event_line(event))
                since = int(event["seq"])
            if since < int(answer["last"]) and answer["events"]:
                continue  # a long log comes in pages
            if not follow:
                return
            clock.sleep(_FOLLOW_EVERY_S)
