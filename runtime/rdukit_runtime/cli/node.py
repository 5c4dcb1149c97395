"""``rdukit node``: run a node daemon and look at it."""

import json
import logging
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import click

from rdukit.clock import SystemClock
from rdukit.hardware import NODES, find_node
from rdukit.settings import resolve
from rdukit.snd import SndClient
from rdukit.units import format_bytes, format_seconds
from rdukit_runtime.cli.install import install, unit
from rdukit_runtime.cli.top import top
from rdukit_runtime.run_node import NodeOptions, node_name, run_node
from rdukit_runtime.settings import PLATFORM, SND_MAX_APPLICATIONS, SND_NAME, socket_mode, socket_path
from rdukit_runtime.snml.settings import SNML_PORT

logger = logging.getLogger(__name__)

_FOLLOW_EVERY_S: Final = 0.25
_LETTERS: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+*"

_socket_option = click.option(
    "--socket",
    "socket_file",
    type=click.Path(path_type=Path),
    default=None,
    help="The daemon's UNIX socket (default: run/snd.sock in the home folder).",
)


@click.group()
def node() -> None:
    """Run and look at emulated nodes.

    Example: rdukit node start --platform SN30-8
    """


node.add_command(install)
node.add_command(top)
node.add_command(unit)


@node.command()
@click.option("--platform", default=None, help=f"One of {', '.join(NODES)} (default {PLATFORM.default}).")
@_socket_option
@click.option("--name", default=None, help="Name of the node (default: the host's name).")
@click.option("--max-applications", type=int, default=None, help="Applications at once (default: the platform's).")
@click.option("--state", type=click.Path(path_type=Path), default=None, help="Folder of the database and the logs.")
@click.option("--snml-port", type=click.IntRange(-1, 65535), default=None, help="SNML's loopback port; -1: none.")
@click.option("--no-snml", is_flag=True, help="Do without the management interface over gRPC.")
@click.option("--announce", type=click.Path(path_type=Path), default=None, help="Write a JSON file here when ready.")
@click.option("--with-parent", is_flag=True, help="Stop when the process that started this one ends.")
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
    """
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
    click.echo(f"snd stopped: {run_node(options, click.echo)}", err=True)


@node.command()
@_socket_option
@click.option("--json", "as_json", is_flag=True, help="Print the daemon's answer as JSON.")
def status(socket_file: Path | None, as_json: bool) -> None:
    """Show a running node: its tiles, and who holds them.

    Example: rdukit node status --json
    """
    with SndClient(socket_path(socket_file)) as client:
        answer = dict(client.status())
    answer.pop("ok", None)
    if as_json:
        click.echo(json.dumps(answer, indent=2, sort_keys=True))
        return
    click.echo("\n".join(status_lines(answer, SystemClock().now())))


@node.command()
@_socket_option
@click.option("--since", type=click.IntRange(min=0), default=0, help="Only events after this sequence number.")
@click.option("--follow", is_flag=True, help="Go on until Ctrl-C.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a line.")
def events(socket_file: Path | None, since: int, follow: bool, as_json: bool) -> None:
    """List what happened on a running node: grants, releases, deaths, refusals.

    Example: rdukit node events --follow
    """
    clock = SystemClock()
    with SndClient(socket_path(socket_file)) as client:
        while True:
            answer = client.call("events", since=since)
            for event in answer["events"]:
                click.echo(json.dumps(event, sort_keys=True) if as_json else event_line(event))
                since = int(event["seq"])
            if since < int(answer["last"]) and answer["events"]:
                continue  # a long log comes in pages
            if not follow:
                return
            clock.sleep(_FOLLOW_EVERY_S)


def status_lines(answer: Mapping[str, Any], now: float) -> list[str]:
    """The text form of a ``status`` answer: a head, a picture of the tiles by RDU, a table of the leases."""
    tiles: Sequence[Mapping[str, Any]] = answer["tiles"]
    leases: Sequence[Mapping[str, Any]] = answer["leases"]
    letters = {lease["id"]: _LETTERS[i % len(_LETTERS)] for i, lease in enumerate(leases)}
    free = sum(tile["lease"] is None for tile in tiles)
    memory = answer["memory"]
    lines = [
        f"{answer['platform']} ({answer['chip']}) on {answer['node']}, up {format_seconds(answer['uptime_s'])}",
        f"tiles   {free} of {len(tiles)} free",
        f"memory  {format_bytes(memory['total'] - memory['used'])} of {format_bytes(memory['total'])} free",
        f"apps    {answer['applications']} of {answer['max_applications']}",
        "",
    ]
    by_rdu: dict[str, list[str]] = {}
    for tile in tiles:
        rdu = str(tile["path"]).rsplit("/", 1)[0]
        by_rdu.setdefault(rdu, []).append("." if tile["lease"] is None else letters[tile["lease"]])
    lines += [f"{rdu}  {' '.join(marks)}" for rdu, marks in by_rdu.items()]
    lines.append("")
    if not leases:
        return [*lines, "no leases"]
    rows = [["", "LEASE", "APPLICATION", "TENANT", "JOB", "TILES", "MEMORY", "USED", "PHASE", "PIDS", "AGE"]]
    for lease in leases:
        rows.append(
            [
                letters[lease["id"]], lease["id"], lease["application"], lease["tenant"] or "-", lease["job"] or "-",
                str(len(lease["tiles"])), format_bytes(lease["memory_bytes"]),
                format_bytes(lease["memory_allocated"]), str(lease["counters"].get("phase", "-")),
                ",".join(map(str, lease["pids"])) or "-", format_seconds(max(0.0, now - lease["granted_at"])),
            ]
        )  # fmt: skip
    return [*lines, *_aligned(rows)]


def event_line(event: Mapping[str, Any]) -> str:
    """The text form of one event."""
    stamp = datetime.fromtimestamp(event["time"], UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    tiles = event["tiles"]
    where = "-" if not tiles else tiles[0] if len(tiles) == 1 else f"{tiles[0]} and {len(tiles) - 1} more"
    words = [
        f"{event['seq']:>5}", stamp, f"{event['kind']:<7}", event["lease"] or "-",
        f"application={event['application']}", where,
    ]  # fmt: skip
    words += [f"{name}={event[name]}" for name in ("tenant", "job", "pid", "reason") if event[name]]
    return "  ".join(words)


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
