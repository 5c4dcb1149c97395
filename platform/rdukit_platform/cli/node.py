"""``rdukit node join``, ``list``, ``cordon``, ``drain`` and the like: a platform's nodes, through its gateway."""

import json
import time
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote

import click

from rdukit.cli.commands import JSON_OPTION, TOKEN_OPTION, parse_name_values
from rdukit.cli.watch import watchable
from rdukit.errors import InvalidArgument
from rdukit.settings import resolve
from rdukit_platform.cli import connect, show
from rdukit_platform.cli.complete import NODES

#: Seconds between polls for a node's departure.
WAIT_S: Final = 0.5

COMPONENT = click.argument("component", metavar="[NODE|COMPONENT]", default="/NODE")
REASON_OPTION = click.option("--reason", default="", help="Reason, for the logs and for users with waiting jobs.")
NODE_OPTION = click.option("--node", default="-", help="Name of the node (default: the platform's only one).")


@click.command()
@COMPONENT
@REASON_OPTION
@NODE_OPTION
@JSON_OPTION
@TOKEN_OPTION
def cordon(component: str, reason: str, node: str, as_json: bool) -> None:
    """Cordon a node, XRDU, RDU or tile: no new allocations; running work continues.

    Needs a token with the scope admin. Without a platform: snfadm --cordon PATH.

    NODE is a node's name, for the complete node; COMPONENT is a path such as /NODE/XRDU_0 on the node of --node.

    Example: rdukit node cordon /NODE/XRDU_0/RDU_1 --node blade-7 --reason "noisy fan"

    Example: rdukit node cordon blade-7
    """
    node, component = chosen_part(node, component)
    _change(node, "cordon", {"component": component, "reason": reason}, as_json)


@click.command()
@COMPONENT
@NODE_OPTION
@JSON_OPTION
@TOKEN_OPTION
def uncordon(component: str, node: str, as_json: bool) -> None:
    """Uncordon a node, or a part of it with everything below, so that it is allocated again.

    Example: rdukit node uncordon blade-7

    Example: rdukit node uncordon /NODE/XRDU_0/RDU_1 --node blade-7
    """
    node, component = chosen_part(node, component)
    _change(node, "uncordon", {"component": component}, as_json)


@click.command()
@COMPONENT
@click.option(
    "--deadline",
    type=click.FloatRange(0),
    default=None,
    metavar="S",
    help="Drain deadline in seconds, when leases are ended.",
)
@REASON_OPTION
@NODE_OPTION
@JSON_OPTION
@TOKEN_OPTION
def drain(component: str, deadline: float | None, reason: str, node: str, as_json: bool) -> None:
    """Cordon a part of a node, and let running work finish. Jobs that the deadline ends resume from checkpoints.

    Example: rdukit node drain blade-7 --deadline 600 --reason "new firmware"

    Example: rdukit node drain /NODE/XRDU_0/RDU_0 --reason repair
    """
    node, component = chosen_part(node, component)
    _change(node, "drain", {"component": component, "deadline_s": deadline, "reason": reason}, as_json)


@click.command()
@click.argument("lease", metavar="LEASE")
@REASON_OPTION
@NODE_OPTION
@JSON_OPTION
@TOKEN_OPTION
def release(lease: str, reason: str, node: str, as_json: bool) -> None:
    """End a lease of any user. Its job is queued again.

    Example: rdukit node release lease-9d3e5f0a1b2c --reason "stuck"

    Example: rdukit node release lease-9d3e5f0a1b2c --node blade-7
    """
    _change(node, f"leases/{quote(lease, safe='')}/release", {"reason": reason}, as_json)


@click.command()
@COMPONENT
@click.option("--start", default=None, metavar="TIME", help="ISO time, by default in UTC (default: now).")
@click.option("--end", default=None, metavar="TIME", help="End (default: until a command ends it).")
@click.option("--deadline", type=click.FloatRange(0), default=None, metavar="S", help="Grace in seconds.")
@click.option("--reason", required=True, help="Reason, for the logs and for users with waiting jobs.")
@NODE_OPTION
@JSON_OPTION
@TOKEN_OPTION
def maintain(
    component: str, start: str | None, end: str | None, deadline: float | None, reason: str, node: str,
    as_json: bool,
) -> None:  # fmt: skip
    """Plan a maintenance window. The part is drained from its start to its end.

    Example: rdukit node maintain --start 2026-12-01T06:00 --end 2026-12-01T10:00 --reason "power works"

    Example: rdukit node maintain blade-7 --end 2026-12-01T10:00 --deadline 900 --reason works
    """
    node, component = chosen_part(node, component)
    body = {
        "component": component, "starts_at": _moment(start), "ends_at": _moment(end), "grace_s": deadline,
        "reason": reason,
    }  # fmt: skip
    _change(node, "maintenance", body, as_json)


@click.command("end-maintenance")
@click.argument("window", metavar="WINDOW")
@NODE_OPTION
@JSON_OPTION
@TOKEN_OPTION
def end_maintenance(window: str, node: str, as_json: bool) -> None:
    """End a maintenance window now, or cancel a planned one.

    Example: rdukit node end-maintenance mw-472c71ce

    Example: rdukit node end-maintenance mw-472c71ce --node blade-7
    """
    with connect() as client:
        _show(client.delete(f"/v1/nodes/{quote(node, safe='')}/maintenance/{quote(window, safe='')}"), as_json)


@click.command("list")
@JSON_OPTION
@TOKEN_OPTION
@watchable
def list_(as_json: bool) -> None:
    """List the platform's nodes: state, tiles, and last heartbeat.

    Example: rdukit node list

    Example: rdukit node list --watch
    """
    with connect() as client:
        nodes = client.get("/v1/nodes")["nodes"]
    if as_json:
        show.print_json(nodes)
        return
    columns = ("NODE", "STATE", "HEALTH", "PLATFORM", "FREE TILES", "HEARD", "LABELS")
    show.print_table(columns, [node_row(node) for node in nodes])


def node_row(node: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a node's row in the table."""
    tiles = node.get("tiles") or []
    free = sum(1 for tile in tiles if not tile.get("lease") and not tile.get("cordon"))
    cordoned = sum(1 for tile in tiles if tile.get("cordon"))
    closed = f", {cordoned} cordoned" if cordoned else ""
    labels = ",".join(f"{key}={value}" for key, value in sorted((node.get("labels") or {}).items()))
    heard = show.ago(node.get("beat_at"))
    return (
        node["name"], node["state"], node.get("health") or "-", node.get("platform") or "-",
        f"{free} of {len(tiles)}{closed}" if tiles else "-", heard if heard == "-" else f"{heard} ago", labels or "-",
    )  # fmt: skip


@click.command()
@click.argument("node", metavar="NODE", shell_complete=NODES)
@click.option("--wait", is_flag=True, help="Wait until the node has left.")
@JSON_OPTION
@TOKEN_OPTION
def leave(node: str, wait: bool, as_json: bool) -> None:
    """Let a node leave: it gets no more jobs, and leaves when its present jobs are done; rdukit node join then ends
    there.

    Needs a token with the scope admin. To end running work, too: rdukit node drain NODE --deadline 0

    Example: rdukit node leave blade-7 --wait

    Example: rdukit node leave blade-7
    """
    _move(node, "leave", as_json, wait)


@click.command()
@click.argument("node", metavar="NODE", shell_complete=NODES)
@click.argument("labels", metavar="KEY=VALUE|KEY-...", nargs=-1, required=True)
@JSON_OPTION
@TOKEN_OPTION
def label(node: str, labels: tuple[str, ...], as_json: bool) -> None:
    """Set labels of a node, which jobs require with --constraint, or remove them (KEY-).

    They override the labels of its setting node.labels. Needs a token with the scope admin.

    Example: rdukit node label blade-7 zone=a rack-

    Example: rdukit node label blade-7 rack=3
    """
    removed = [word[:-1] for word in labels if word.endswith("-") and "=" not in word]
    given = parse_name_values("KEY", [word for word in labels if not (word.endswith("-") and "=" not in word)])
    with connect() as client:
        found = client.post(f"/v1/nodes/{quote(node, safe='')}/labels", {"set": given, "remove": removed})
    if as_json:
        click.echo(json.dumps(found, indent=2, sort_keys=True))
    else:
        words = ", ".join(f"{key}={value}" for key, value in sorted(found["labels"].items()))
        click.echo(f"node {found['node']} has {words or 'no labels'}")


@click.command()
@click.argument("node", metavar="NODE", shell_complete=NODES)
@JSON_OPTION
@TOKEN_OPTION
def rejoin(node: str, as_json: bool) -> None:
    """Let a node accept jobs again that is leaving, or that has left and still runs.

    Example: rdukit node rejoin blade-7

    Example: rdukit node rejoin blade-7 --context lab
    """
    _move(node, "rejoin", as_json)


@click.command()
@click.option("--database", default=None, help="SQLAlchemy URL of the platform's database.")
@click.option("--broker", default=None, help="Celery URL of its broker.")
@click.option(
    "--artifacts",
    default=None,
    help="Artifacts of the platform: a folder that this machine also mounts, or s3://BUCKET/PREFIX.",
)
@click.option("--name", default=None, help="Name of the node (default: the host's name).")
@click.option("--label", "labels", multiple=True, metavar="KEY=VALUE", help="Label of the node; may be repeated.")
@click.option("--platform", default=None, help="Platform of the emulated node, as for rdukit node start.")
@click.option(
    "--replicas", type=click.IntRange(0), default=None, metavar="N",
    help="Largest number of replicas; above 0 only on the gateway's machine, because replicas listen on sockets "
        "(default 0, or the setting worker.replicas).",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON when it has joined.")
def join(
    database: str | None, broker: str | None, artifacts: str | None, name: str | None, labels: tuple[str, ...],
    platform: str | None, replicas: int | None, as_json: bool,
) -> None:  # fmt: skip
    """Run this machine as a node of a platform: node daemon and worker, until Ctrl-C or until it has left.

    Database, broker and artifacts are the platform's; missing options come from the settings. The node's state is in a
    home folder of its own ($RDUKIT_HOME).

    Example: rdukit node join --name blade-7 --database postgresql+psycopg://rdukit@db/rdukit --broker redis://mq:6379/0

    Example: rdukit node join --label zone=a --replicas 2
    """
    from rdukit_platform.settings import (
        ARTIFACTS_STORE,
        BROKER_URL,
        DATABASE_URL,
        NODE_LABELS,
        NODE_NAME,
        WORKER_REPLICAS,
        checked_home,
    )
    from rdukit_platform.up.join import JoinedNode, run_node

    given = {
        DATABASE_URL: database, BROKER_URL: broker, ARTIFACTS_STORE: artifacts, NODE_NAME: name,
        NODE_LABELS: ",".join(labels) or None,
    }  # fmt: skip
    options = {NODE_NAME: "--name", NODE_LABELS: "--label"}
    for setting, option in options.items():
        try:
            setting.parse(given[setting] or "")
        except ValueError as cause:
            raise InvalidArgument(f"{option}: {cause}") from cause
    variables = {setting.variable: text for setting, text in given.items() if text is not None}
    if platform is not None:
        variables["RDUKIT_PLATFORM"] = platform
    if replicas is None and resolve(WORKER_REPLICAS) == WORKER_REPLICAS.default:
        replicas = 0
    variables[WORKER_REPLICAS.variable] = str(resolve(WORKER_REPLICAS, replicas))

    def announce(node: JoinedNode) -> None:
        if as_json:
            click.echo(json.dumps(asdict(node)))
        else:
            click.echo(f"node {node.name} has joined in {node.ready_s} s\nhome      {node.home}\nstop with Ctrl-C")

    left = run_node(variables, checked_home, announce)
    if left is not None:
        click.echo(f"node {left} has left", err=as_json)


def chosen_part(node: str, named: str) -> tuple[str, str]:
    """Return node and component that a command's argument names: a component by its path, or a node (pure).

    Raises:
        InvalidArgument: ``--node`` names another node.
    """
    if "/" in named:
        return node, named
    if node not in {"-", named}:
        raise InvalidArgument(
            f"{named!r} is a node's name, but --node names {node!r}; give one of them, or a path such as /NODE/XRDU_0"
        )
    return named, "/NODE"


def _move(node: str, what: str, as_json: bool, wait: bool = False) -> None:
    with connect() as client:
        answer = client.post(f"/v1/nodes/{quote(node, safe='')}/{what}", {})
        while wait and answer["state"] == "leaving":
            time.sleep(WAIT_S)
            state = next(
                (each["state"] for each in client.get("/v1/nodes")["nodes"] if each["name"] == answer["node"]), "left"
            )
            answer = {**answer, "state": "leaving" if state == "unreachable" else state}
    show.print_answer(answer, as_json, f"{answer['node']} is {answer['state']}")


def _change(node: str, what: str, body: Mapping[str, object], as_json: bool) -> None:
    with connect() as client:
        _show(client.post(f"/v1/nodes/{quote(node, safe='')}/{what}", dict(body)), as_json)


def _show(answer: Mapping[str, Any], as_json: bool) -> None:
    show.print_answer(answer, as_json, "\n".join(change_words(answer)))


def change_words(answer: Mapping[str, Any]) -> list[str]:
    """Return the lines that describe a change."""
    name = answer["node"]
    if (row := answer.get("cordon")) is not None:
        until = "" if row["deadline"] is None else f" until {_stamp(row['deadline'])} at the latest"
        lines = [f"{name}: {row['component']} is {row['state']}{until}"]
        lines += [f"lease {lease} is still there" for lease in row["leases"]]
        if row["leases"] and row["state"] == "draining" and row["deadline"] is None:
            lines.append(
                "jobs there run to their end, and replicas of endpoints stay; to move them: "
                f"rdukit node drain {name} --deadline SECONDS, or rdukit node leave there"
            )
        return lines
    if (paths := answer.get("uncordoned")) is not None:
        return [f"{name}: {path} is allocated again" for path in paths]
    if (lease := answer.get("released")) is not None:
        job = f", job {lease['job']}" if lease.get("job") else ""
        return [f"{name}: lease {lease['lease']} of {lease['application']}{job} ended"]
    window = answer["window"]
    end = "until a command ends it" if window["ends_at"] is None else f"until {_stamp(window['ends_at'])}"
    return [f"{name}: maintenance window {window['window']} of {window['component']}, "
            f"{_stamp(window['starts_at'])} {end}"]  # fmt: skip


def _stamp(at_ns: int) -> str:
    return datetime.fromtimestamp(at_ns // 10**9, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _moment(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError as cause:
        raise InvalidArgument(f"{text!r} is not a time; expected an ISO time such as 2026-12-01T06:00") from cause
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
