"""``rdukit pipeline schedule`` and related commands: submit pipelines at the times of a cron expression."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click

from rdukit.cli.commands import JSON_OPTION, TOKEN_OPTION, Choice
from rdukit.cli.watch import watchable
from rdukit_platform.cli import connect, show
from rdukit_platform.cli.complete import SCHEDULES


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--cron", required=True, metavar="CRON", help='Minute, hour, day, month, weekday: "0 3 * * MON-FRI".')
@click.option("--zone", default="UTC", show_default=True, help="Time zone of CRON, such as Europe/Berlin.")
@click.option("--name", default=None, help="Name of the schedule [default: the pipeline's].")
@click.option(
    "--missed", type=Choice(("skip", "latest")), default="skip", show_default=True,
    help="Action for due times missed while the platform was down: skip them, or run the latest.",
)  # fmt: skip
@click.option(
    "--overlap", type=Choice(("skip", "queue")), default="skip", show_default=True,
    help="Action if the previous run's pipeline has not ended: skip the run, or queue it.",
)  # fmt: skip
@JSON_OPTION
@TOKEN_OPTION
def schedule(file: Path, cron: str, zone: str, name: str | None, missed: str, overlap: str, as_json: bool) -> None:
    """Schedule the pipeline in a YAML FILE: submit it at the times of a cron expression.

    Example: rdukit pipeline schedule digits.yaml --cron "0 3 * * *" --zone Europe/Berlin --missed latest

    Example: rdukit pipeline schedule digits.yaml --cron "*/30 * * * *" --name often
    """
    from rdukit_platform.cli.job import read_pipeline

    body = read_pipeline(file, None)
    asked = {
        "name": name or body.get("name"), "cron": cron, "zone": zone, "missed": missed, "overlap": overlap,
        "pipeline": body,
    }  # fmt: skip
    _tell(_call("POST", "/v1/schedules", asked), as_json)


@click.command()
@click.argument("name", required=False, metavar="[SCHEDULE]", shell_complete=SCHEDULES)
@show.page_options
@JSON_OPTION
@TOKEN_OPTION
@watchable
def schedules(name: str | None, limit: int, cursor: str | None, as_json: bool) -> None:
    """List schedules with their next and last run, or show the runs of one.

    Example: rdukit pipeline schedules digits

    Example: rdukit pipeline schedules --watch
    """
    with connect() as client:
        found = client.get(_path(name)) if name else client.get("/v1/schedules", limit=limit, cursor=cursor)
    if as_json:
        show.print_json(found)
    elif name:
        show.print_fields(_lines(found))
        click.echo()
        runs = [(show.clock(r["due_at"]), r["state"], r["pipeline"] or "-", r["why"] or "") for r in found["runs"]]
        show.print_table(("DUE (UTC)", "STATE", "PIPELINE", "WHY"), runs)
    else:
        rows = [
            (one["name"], one["cron"], one["zone"], _next(one), *_last(one["runs"][0] if one["runs"] else None))
            for one in found["schedules"]
        ]
        show.print_table(("NAME", "CRON", "ZONE", "NEXT", "LAST", "PIPELINE"), rows)
        if found["next_cursor"]:
            click.echo(f"more with: --cursor {found['next_cursor']}", err=True)


@click.command()
@click.argument("name", metavar="SCHEDULE", shell_complete=SCHEDULES)
@JSON_OPTION
@TOKEN_OPTION
def unschedule(name: str, as_json: bool) -> None:
    """Remove a schedule; pipelines that it has submitted continue.

    Example: rdukit pipeline unschedule digits

    Example: rdukit pipeline unschedule often
    """
    gone = _call("DELETE", _path(name))
    show.print_answer(gone, as_json, f"{name} is removed")


@click.command()
@click.argument("name", metavar="SCHEDULE", shell_complete=SCHEDULES)
@JSON_OPTION
@TOKEN_OPTION
def pause(name: str, as_json: bool) -> None:
    """Pause a schedule: it submits nothing until it is resumed.

    Example: rdukit pipeline pause digits

    Example: rdukit pipeline pause digits --context lab
    """
    _tell(_call("POST", f"{_path(name)}/pause"), as_json)


@click.command()
@click.argument("name", metavar="SCHEDULE", shell_complete=SCHEDULES)
@JSON_OPTION
@TOKEN_OPTION
def resume(name: str, as_json: bool) -> None:
    """Resume a paused schedule at its next due time.

    Example: rdukit pipeline resume digits

    Example: rdukit pipeline resume digits --context lab
    """
    _tell(_call("POST", f"{_path(name)}/resume"), as_json)


def _tell(found: Mapping[str, Any], as_json: bool) -> None:
    show.print_answer(found, as_json, schedule_line(found))


def schedule_line(found: Mapping[str, Any]) -> str:
    """Return a schedule on one line, with its next due time."""
    return f"{found['name']}: {found['words']}, {found['zone']}; next: {_next(found)}"


def _lines(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [
        ("schedule", f"{found['name']} ({found['id']})"),
        ("pipeline", f"{found['pipeline']['name']}, {len(found['pipeline']['steps'])} steps"),
        ("when", f"{found['words']}, {found['zone']} ({found['cron']})"),
        ("next", _next(found)),
        ("missed", found["missed"]),
        ("overlap", found["overlap"]),
    ]


def _next(found: Mapping[str, Any]) -> str:
    from rdukit_platform.schedules.timing import local_time

    if found["paused_at"] is not None:
        return "paused"
    return "never again" if found["next_at"] is None else local_time(found["next_at"], found["zone"])


def _last(run: Mapping[str, Any] | None) -> tuple[str, str]:
    return ("-", "-") if run is None else (run["state"], run["pipeline"] or run["why"] or "-")


def _path(name: str) -> str:
    return f"/v1/schedules/{quote(name, safe='')}"


def _call(method: str, path: str, body: Mapping[str, object] | None = None) -> dict[str, Any]:
    with connect() as client:
        return client.delete(path) if method == "DELETE" else client.post(path, body)
