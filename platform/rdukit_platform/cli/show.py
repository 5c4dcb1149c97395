"""Output of the command line for people, and ``rdukit audit``."""

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from rdukit.cli import tables
from rdukit.cli.commands import JSON_OPTION, TOKEN_OPTION, Choice, ExtensibleGroup
from rdukit.cli.tables import print_fields as print_fields
from rdukit.units import format_bytes, format_date
from rdukit_platform.cli import connect

Command = TypeVar("Command", bound=Callable[..., Any])

COLOURS = {
    "succeeded": "green",
    "failed": "red",
    "cancelled": "yellow",
    "running": "cyan",
    "starting": "cyan",
    "retrying": "magenta",
    "paused": "yellow",
}


def print_json(value: object) -> None:
    """Print JSON to stdout."""
    click.echo(json.dumps(value, indent=2, sort_keys=True))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print aligned columns to stdout, states in their colours."""
    tables.print_table(columns, rows, COLOURS)


def print_answer(answer: object, as_json: bool, text: str) -> None:
    """Print an answer of the API as JSON, or a text about it."""
    if as_json:
        print_json(answer)
    else:
        click.echo(text)


def page_options(command: Command) -> Command:
    """Add the options of a page, ``--limit`` and ``--cursor``, to a command that lists something."""
    count = click.IntRange(1, 200)
    limit = click.option("--limit", type=count, default=50, show_default=True, help="Largest number of rows.")
    cursor = click.option("--cursor", default=None, help="next_cursor of the previous page.")
    return limit(cursor(command))


def print_page(
    page: Mapping[str, Any], as_json: bool, columns: Sequence[str], rows: Iterable[Sequence[object]]
) -> None:
    """Print a page of a list as JSON, or as a table, with the option that shows the next page."""
    if as_json:
        print_json(page)
        return
    print_table(columns, rows)
    if page["next_cursor"]:
        click.echo(f"more with: --cursor {page['next_cursor']}", err=True)


def ago(at: float | None) -> str:
    """Return the time since a moment: ``12 s``, ``5 min``, ``3 h``, ``2 d``."""
    if at is None:
        return "-"
    seconds = max(time.time() - at, 0)
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def until(at: float) -> str:
    """Return the time until a moment, in the format of ``ago``."""
    return ago(2 * time.time() - at)


def describe_use(use: Mapping[str, Any]) -> str:
    """Describe a tenant's artifacts: ``3 with 1.5 GiB of 10 GiB``."""
    most = f" of {format_bytes(use['limit_bytes'])}" if use["limit_bytes"] else ", no limit"
    noun = "artifact" if use["artifacts"] == 1 else "artifacts"
    return f"{use['artifacts']} {noun} with {format_bytes(use['bytes'])}{most}"


def clock(at: float | None) -> str:
    """Return a time as UTC."""
    return "-" if at is None else format_date(at)


def describe_event(event: Mapping[str, Any]) -> str:
    """Describe an event of a job in one line."""
    data = event["data"]
    if event["kind"] == "log":
        return f"log       {data.get('line', '')}"
    if event["kind"] == "progress":
        return f"progress  {describe_progress(data)}"
    words = [f"{data.get('to')}"]
    if data.get("reason"):
        words.append(f"({data['reason']})")
    if data.get("tiles"):
        words.append(f"on {len(data['tiles'])} tiles from {data['tiles'][0]}")
    if data.get("outcome") and data["outcome"] != "succeeded":
        words.append(f"attempt {event['attempt']}: {data['outcome']}")
    if data.get("error"):
        words.append(f"- {data['error'].get('message')} [{data['error'].get('code')}]")
    return "state     " + " ".join(words)


def describe_attempt(attempt: Mapping[str, Any]) -> str:
    """Describe an attempt in one line: its end, its node, and its error."""
    tiles, error = attempt["tiles"] or [], attempt["error"]
    where = f", {len(tiles)} {'tile' if len(tiles) == 1 else 'tiles'} from {tiles[0]}" if tiles else ""
    for part in attempt.get("parts") or ():
        where += f", {part['members']} {'member' if part['members'] == 1 else 'members'} on node {part['node']}"
    why = f": {error['message']} [{error['code']}]" if error else ""
    on = attempt["worker"] or "no worker yet"
    if attempt.get("node"):
        on = f"node {attempt['node']}, {on}"
    box = attempt.get("box") or {}
    if box.get("backend") == "slurm":
        on += f", slurm job {box['id']}"
    return f"attempt {attempt['number']}  {attempt['outcome'] or 'is open'} on {on}{where}{why}"


#: Default reasons for a job's state.
_WHY = {
    "submitted": "an earlier step of its pipeline has not ended",
    "queued": "the scheduler has not considered it yet",
    "starting": "not waiting: its box is starting",
    "running": "not waiting: it runs",
    "retrying": "its last attempt failed; the next one follows after a pause",
    "paused": "a user has paused it",
}


def describe_wait(job: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Explain a job's state, as lines of a name and a text."""
    error, at = job["error"], job["estimated_start"]
    ended = f"{job['reason']}{': ' + error['message'] if error else ''}"
    lines = [
        ("state", job["state"]),
        ("code", job["wait_code"]),
        ("why", ended if job["reason"] else job["waits_for"] or _WHY[job["state"]]),
        ("preempted", describe_preemption(job)),
        ("do", job.get("advice")),
        ("place", describe_place(job["attempts"][-1]) if job.get("attempts") else None),
        ("starts", f"by {clock(at)} UTC, in {until(at)}" if at else None),
    ]
    return [(name, text) for name, text in lines if text]


def describe_preemption(job: Mapping[str, Any]) -> str:
    """Describe when, and for which job, a waiting job was last preempted; empty: it was not."""
    last = job["attempts"][-1] if job.get("attempts") else None
    if job["state"] != "queued" or last is None or last["outcome"] != "preempted":
        return ""
    why = f": {last['error']['message']}" if last["error"] else ""
    return f"attempt {last['number']}, at {clock(last['ended_at'])} UTC{why}"


def describe_place(attempt: Mapping[str, Any]) -> str:
    """Describe the distance between the tiles of a running attempt: ``one: 16 tiles, 2 RDUs of 1 XRDU``."""
    from rdukit_platform.nodes.topology import name_counts

    if attempt["outcome"]:
        return ""
    held = [(each.get("node") or "the node", each.get("tiles") or []) for each in (attempt, *attempt.get("parts", ()))]
    return "; ".join(f"{node}: {name_counts(tiles)}" for node, tiles in held if tiles)


def describe_progress(progress: Mapping[str, Any] | None) -> str:
    """Describe progress: ``train 120/750 loss 0.412 3021/s``."""
    if not progress:
        return ""
    words = [str(progress.get("stage", ""))]
    if progress.get("total"):
        words.append(f"{progress.get('step', 0)}/{progress['total']}")
    if (loss := progress.get("loss")) is not None:
        words.append(f"loss {loss if isinstance(loss, str) else f'{loss:.4f}'}")
    if isinstance(rate := progress.get("throughput"), int | float) and rate:
        words.append(f"{rate:.0f}/s")
    return " ".join(words)


@click.group(cls=ExtensibleGroup)
def audit() -> None:
    """List and verify the audit log. Tenants see their own entries, administrators all.

    Example: rdukit audit list --outcome refused

    Example: rdukit audit list --outcome refused --limit 20
    """


@audit.command("list")
@click.option("--action", default=None, help="Show only this action, such as token.create; request: refused requests.")
@click.option("--outcome", type=Choice(["done", "refused"]), default=None, help="Only this outcome.")
@click.option(
    "--about",
    default=None,
    help="Show only actions by or on this job, token or tenant; nobody: callers without a token.",
)
@page_options
@JSON_OPTION
@TOKEN_OPTION
def list_(
    action: str | None, outcome: str | None, about: str | None, limit: int, cursor: str | None, as_json: bool
) -> None:
    """List entries of the audit log, newest first.

    Example: rdukit audit list --action token.create --json

    Example: rdukit audit list --outcome refused --limit 20
    """
    with connect() as client:
        page = client.get("/v1/audit", action=action, outcome=outcome, about=about, limit=limit, cursor=cursor)
    if as_json:
        print_json(page)
        return
    print_table(
        ("TIME", "ACTOR", "ACTION", "TARGET", "OUTCOME", "REASON", "ADDRESS", "COUNT"),
        [
            (clock(e["at"]), e["user"] or e["actor"], e["action"], e["target"], e["outcome"], e["reason"], e["address"],
             e["count"])
            for e in page["entries"]
        ],
    )  # fmt: skip
    if page["next_cursor"]:
        click.echo(f"older ones: --cursor {page['next_cursor']}", err=True)


@audit.command()
@click.option(
    "--file", "exported", type=click.Path(exists=True, dir_okay=False, path_type=Path), default=None,
    help="Verify a file written by rdukit audit export, without a gateway.",
)  # fmt: skip
@JSON_OPTION
@TOKEN_OPTION
def verify(exported: Path | None, as_json: bool) -> None:
    """Verify the hash chains of the audit log. If one is broken, print its first wrong entry and exit with 1.

    A tenant's token verifies the tenant's chains, an administrator's all.

    Example: rdukit audit verify

    Example: rdukit audit verify --json
    """
    if exported is None:
        with connect() as client:
            found = client.get("/v1/audit/verify")
    else:
        from rdukit_platform.audit.chain import verify_export

        with exported.open("rb") as lines:
            said = verify_export(lines)
        found = {
            "intact": said.is_intact, "chains": said.chains, "entries": said.entries, "problem": said.problem,
            "entry": said.entry,
        }  # fmt: skip
    if as_json:
        print_json(found)
    elif found["intact"]:
        click.echo(f"intact: {found['entries']} entries in {found['chains']} chains")
    else:
        click.echo(f"not intact: {found['problem']}{' (' + found['entry'] + ')' if found['entry'] else ''}")
    if not found["intact"]:
        raise SystemExit(1)


@audit.command()
@click.option(
    "--output",
    "-o",
    type=click.Path(dir_okay=False, path_type=Path),
    default=None,
    help="File to write; default: stdout.",
)
@TOKEN_OPTION
def export(output: Path | None) -> None:
    """Write the whole audit log as JSON lines, oldest first, with its digests. Needs the scope admin.

    Example: rdukit audit export --output audit.jsonl

    Example: rdukit audit export -o audit.jsonl --context lab
    """
    from rdukit.files.atomic import atomic_target

    with connect() as client:
        lines = client.lines("/v1/audit/export")
        if output is None:
            for line in lines:
                click.echo(line)
            return
        with atomic_target(output) as target, target.open("x", encoding="utf-8") as file:
            target.chmod(0o600)
            file.writelines(f"{line}\n" for line in lines)
