"""``rdukit pipeline``: manage pipelines, whose jobs pass their outputs on."""

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click

from rdukit.cli.commands import JSON_OPTION, TOKEN_OPTION, ExtensibleGroup
from rdukit.cli.watch import watchable
from rdukit_platform.cli import connect, show
from rdukit_platform.cli.complete import PIPELINES
from rdukit_platform.cli.job import read_pipeline
from rdukit_platform.cli.job_files import NOT_SUCCEEDED, watched
from rdukit_platform.cli.pipeline_graph import graph
from rdukit_platform.cli.pipeline_schedules import pause, resume, schedule, schedules, unschedule
from rdukit_platform.jobs.states import FINAL

#: Seconds between polls of a waiting command.
LOOK_S: Final = 1.0


@click.group(cls=ExtensibleGroup)
def pipeline() -> None:
    """Submit, list, show, cancel and schedule pipelines of jobs.

    Example: rdukit pipeline submit digits.yaml --watch

    Example: rdukit pipeline submit digits.yaml --no-cache
    """


@pipeline.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--no-cache", is_flag=True, help="Run all steps, even if earlier jobs have made the same outputs.")
@click.option("--key", default=None, help="Idempotency key: the same key gives the same pipeline.")
@click.option(
    "--watch", is_flag=True, help="Show the pipeline until it ends; the exit status is 4 if it does not succeed."
)
@JSON_OPTION
@TOKEN_OPTION
def submit(file: Path, no_cache: bool, key: str | None, watch: bool, as_json: bool) -> None:
    """Submit the pipeline in a YAML FILE, with the keys of POST /v1/pipelines: name and steps.

    Example: rdukit pipeline submit digits.yaml --watch

    Example: rdukit pipeline submit digits.yaml --no-cache
    """
    body = read_pipeline(file, key)
    with connect() as client:
        found = client.submit("/v1/pipelines", {**body, "cache": False} if no_cache else body)
        if watch:
            begun = found
            with watched([begun["id"]], "pipeline", "cancel", lambda: begun, as_json=as_json):
                found = _watch(client, found, is_quiet=as_json)
    if as_json or watch:
        _print(found, as_json)
    else:
        click.echo(found["id"])
    if watch and found["state"] != "succeeded":
        sys.exit(NOT_SUCCEEDED)


@pipeline.command("list")
@show.page_options
@JSON_OPTION
@TOKEN_OPTION
@watchable
def list_(limit: int, cursor: str | None, as_json: bool) -> None:
    """List pipelines, newest first.

    Example: rdukit pipeline list --limit 10

    Example: rdukit pipeline list --watch
    """
    with connect() as client:
        page = client.get("/v1/pipelines", limit=limit, cursor=cursor)
    rows = [
        (one["id"], one["name"], one["state"], f"{_ended(one['jobs'])}/{len(one['jobs'])}", show.ago(one["created_at"]))
        for one in page["pipelines"]
    ]
    show.print_page(page, as_json, ("ID", "NAME", "STATE", "ENDED", "AGE"), rows)


@pipeline.command("show")
@click.argument("pipeline_id", metavar="PIPELINE", shell_complete=PIPELINES)
@click.option(
    "--watch", is_flag=True, help="Show the pipeline until it ends; the exit status is 4 if it does not succeed."
)
@JSON_OPTION
@TOKEN_OPTION
def show_(pipeline_id: str, watch: bool, as_json: bool) -> None:
    """Show a pipeline's steps: their sources, states and jobs.

    Example: rdukit pipeline show pipe-7k2m9x41abcd

    Example: rdukit pipeline show pipe-7k2m9x41abcd --watch
    """
    with connect() as client:
        found = client.get(f"/v1/pipelines/{pipeline_id}")
        if watch:
            found = _watch(client, found, is_quiet=as_json)
    _print(found, as_json)
    if watch and found["state"] != "succeeded":
        sys.exit(NOT_SUCCEEDED)


@pipeline.command()
@click.argument("pipeline_id", metavar="PIPELINE", shell_complete=PIPELINES)
@JSON_OPTION
@TOKEN_OPTION
def cancel(pipeline_id: str, as_json: bool) -> None:
    """Cancel all jobs of a pipeline that have not ended.

    Example: rdukit pipeline cancel pipe-7k2m9x41abcd

    Example: rdukit pipeline cancel pipe-7k2m9x41abcd --context lab
    """
    with connect() as client:
        found = client.post(f"/v1/pipelines/{pipeline_id}/cancel")
    show.print_answer(found, as_json, f"{found['id']} is {found['state']}")


for _command in (graph, schedule, schedules, unschedule, pause, resume):
    pipeline.add_command(_command)


def rows_of(jobs: Sequence[Mapping[str, Any]]) -> list[tuple[str, str, str, str, str]]:
    """Return a line for each step: its name, sources, state, job, and a note (pure)."""
    from rdukit_platform.db.references import sources_of

    rows = []
    for job in jobs:
        after = sources_of(job["references"])
        rows.append((str(job["step"]), ", ".join(after), str(job["state"]), str(job["id"]), _what(job)))
    return rows


def _what(job: Mapping[str, Any]) -> str:
    if job["cached_from"]:
        return f"cached, from {job['cached_from']}"
    if job["error"]:
        return str(job["error"]["message"])
    if job["state"] in FINAL:
        return "" if job["state"] == "succeeded" else str(job["reason"])
    return str(job["waits_for"] or show.describe_progress(job["progress"]) or "")


def _ended(jobs: Sequence[Mapping[str, Any]]) -> int:
    return sum(job["state"] in FINAL for job in jobs)


def _watch(client: Any, found: dict[str, Any], *, is_quiet: bool) -> dict[str, Any]:
    """Poll until the pipeline has ended, and print changes of its steps' states to stderr."""
    printed: dict[str, str] = {}
    while True:
        for job in found["jobs"]:
            if not is_quiet and printed.get(job["id"]) != job["state"]:
                click.echo(f"{job['step']}  {job['state']}", err=True)
            printed[job["id"]] = job["state"]
        if found["state"] in FINAL:
            return found
        time.sleep(LOOK_S)
        found = client.get(f"/v1/pipelines/{found['id']}")


def _print(found: dict[str, Any], as_json: bool) -> None:
    if as_json:
        show.print_json(found)
        return
    click.echo(f"{found['id']}  {found['name']}  {found['state']}")
    show.print_table(("STEP", "AFTER", "STATE", "JOB", "WHAT"), rows_of(found["jobs"]))
