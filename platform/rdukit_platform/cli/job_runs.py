"""``rdukit job clone``, ``compare`` and ``metrics``: commands that treat jobs as runs."""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from rdukit.cli.commands import JSON_OPTION, TOKEN_OPTION, parse_name_values, parse_value
from rdukit.errors import InvalidArgument, NotFound
from rdukit.files.atomic import write_atomic
from rdukit_platform.cli import connect, show
from rdukit_platform.cli.complete import JOBS
from rdukit_platform.cli.job_control import queue_options

if TYPE_CHECKING:
    from rdukit_platform.client.http import ApiClient

#: Parts of a comparison in printed order, with the prefixes of their names.
_GROUPS: Final = (
    ("about", ""), ("parameters", "parameter "), ("results", "result "), ("artifacts", ""), ("durations", ""),
)  # fmt: skip


@click.command()
@click.argument("job_id", metavar="JOB", shell_complete=JOBS)
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="A changed parameter; repeat for more.")
@click.option("--default", "defaults", multiple=True, metavar="NAME", help="A parameter to reset to the box's default.")
@click.option("--input", "inputs", multiple=True, metavar="SLOT=ARTIFACT", help="A changed input; repeat for more.")
@click.option("--name", default=None, help="Name of the new job (default: that of JOB).")
@queue_options
@click.option("--key", default=None, help="Idempotency key: the same key gives the same job.")
@click.option("--wait", is_flag=True, help="Wait for the end; the exit status is 4 if the job does not succeed.")
@JSON_OPTION
@TOKEN_OPTION
def clone(
    job_id: str,
    settings: Sequence[str],
    defaults: Sequence[str],
    inputs: Sequence[str],
    name: str | None,
    queue: Mapping[str, object],
    key: str | None,
    wait: bool,
    as_json: bool,
) -> None:
    """Clone a job: submit it again, with the same version of its box and with changes.

    Other values are JOB's; given labels replace all of JOB's labels.

    Example: rdukit job clone job-7k2m9x41abcd --set lr=0.1 --wait

    Example: rdukit job clone job-7k2m9x41abcd --default lr --name again
    """
    from rdukit_platform.cli.job_files import submit_body

    body: dict[str, object] = {
        "parameters": {k: parse_value(v) for k, v in parse_name_values("--set", settings).items()},
        "defaults": list(defaults),
        "inputs": parse_name_values("--input", inputs),
    }
    named = {k: v for k, v in {"name": name, "idempotency_key": key}.items() if v is not None}
    submit_body(f"/v1/jobs/{job_id}/clone", {**body, **named, **queue}, wait=wait, as_json=as_json)


@click.command()
@click.argument("job_id", metavar="JOB", shell_complete=JOBS)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    default=Path("profile"),
    show_default=True,
    help="New folder for report.html, trace.json, speedscope.json and summary.json.",
)
@TOKEN_OPTION
def profile(job_id: str, output: Path) -> None:
    """Fetch the profile of a job that was submitted with --profile: where its time went, and advice.

    The same command continues an interrupted download.

    Example: rdukit job profile job-7k2m9x41abcd

    Example: rdukit job profile job-7k2m9x41abcd -o slow/
    """  # fmt: skip
    from rdukit_platform.client.artifacts import fetch_artifact

    with connect() as client:
        found = client.get(f"/v1/jobs/{job_id}")
        if (made := found["outputs"].get("profile") if found["profile"] else None) is None:
            raise NotFound(_why_no_profile(found))
        fetch_artifact(client, made, output)
    click.echo(f"{output / 'report.html'}: open it in a browser", err=True)


def _why_no_profile(job: Mapping[str, Any]) -> str:
    """Explain why a job has no profile, and what to do (pure)."""
    if not job["profile"]:
        return f"job {job['id']} was submitted without a profile; run it again: rdukit job clone {job['id']} --profile"
    if job["state"] == "succeeded":
        return f"job {job['id']} has no profile; its log has the reason: rdukit job logs {job['id']}"
    return f"job {job['id']} is {job['state']}; its profile exists once it has succeeded"


@click.command()
@click.argument("jobs", metavar="JOB...", nargs=-1, required=True, shell_complete=JOBS)
@click.option("--all", "show_all", is_flag=True, help="Show parameters that are equal in all jobs, too.")
@JSON_OPTION
@TOKEN_OPTION
def compare(jobs: Sequence[str], show_all: bool, as_json: bool) -> None:
    """Compare jobs, a column per job: differing parameters, metrics, results, artifacts and times.

    A parameter that a job did not set has its box's default. Metrics are the last values of the jobs' progress.

    Example: rdukit job compare job-7k2m9x41abcd job-9m4p2x63cdef

    Example: rdukit job compare job-7k2m9x41abcd job-9m4p2x63cdef --all
    """
    with connect() as client:
        found = client.get("/v1/jobs/compare", ids=",".join(jobs))
    if as_json:
        show.print_json(found)
    else:
        show.print_table(("JOB", *found["jobs"], ""), comparison_rows(found, show_all=show_all))


@click.command()
@click.argument("job_id", metavar="JOB", shell_complete=JOBS)
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV: one line per time, one column per metric.")
@click.option("--all", "is_all", is_flag=True, help="Print every step, from the artifact metrics of an ended job.")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), default=None, help="File to write to.")
@JSON_OPTION
@TOKEN_OPTION
def metrics(job_id: str, as_csv: bool, is_all: bool, out: Path | None, as_json: bool) -> None:
    """Print a job's progress figures: step, loss and other metrics of its box, up to four times a second.

    Example: rdukit job metrics job-7k2m9x41abcd --all --csv --out loss.csv

    Example: rdukit job metrics job-7k2m9x41abcd
    """
    if as_csv and as_json:
        raise InvalidArgument("--csv and --json cannot be combined; choose one")
    with connect() as client:
        if is_all:
            points = _every_step(client, job_id)
        else:
            points = list(client.metrics(job_id))
            if "metrics" in client.get(f"/v1/jobs/{job_id}")["outputs"]:
                click.echo("--all has every step", err=True)
    if as_json:
        text = json.dumps({"points": points}, indent=2, sort_keys=True) + "\n"
    elif as_csv or out is not None:
        text = metrics_csv(points)
    else:
        columns, rows = metrics_table(points)
        show.print_table([name.upper() for name in columns], rows)
        return
    if out is None:
        click.echo(text, nl=False)
    else:
        write_atomic(out, text.encode())


def _every_step(client: "ApiClient", job_id: str) -> list[dict[str, Any]]:
    """Return the lines of a job's artifact ``metrics`` as points without times.

    Raises:
        NotFound: the job has no such artifact.
        InvalidArgument: the artifact has another format.
    """
    job, text = client.get(f"/v1/jobs/{job_id}"), io.BytesIO()
    if "metrics" not in job["outputs"]:
        raise NotFound(
            f"job {job_id} is {job['state']} and has no artifact metrics; leave out --all to print its progress events"
        )
    client.download(f"/v1/artifacts/{job['outputs']['metrics']}/content", text)
    try:
        return [{"values": dict(json.loads(line))} for line in text.getvalue().splitlines()]
    except (TypeError, ValueError) as cause:
        raise InvalidArgument(f"artifact metrics of job {job_id} is damaged; expected lines of JSON objects") from cause


def comparison_rows(found: Mapping[str, Any], *, show_all: bool = False) -> list[tuple[str, ...]]:
    """Return a comparison as rows: a name, a cell per job, and whether the cells differ (pure)."""
    rows = []
    for group, word in _GROUPS:
        for line in found[group]:
            is_shown = (
                line["differs"] or show_all if group == "parameters" else any(v is not None for v in line["values"])
            )
            if is_shown:
                cells = (_cell(line["name"], value, group) for value in line["values"])
                rows.append((f"{word}{line['name']}", *cells, "differs" if line["differs"] else ""))
        if group == "parameters":
            for line in found["metrics"]:
                for kind in ("last", "lowest") if line["name"] == "loss" else ("last",):
                    cells = (_cell(line["name"], value, "metrics") for value in line[kind])
                    differs = any(value != line[kind][0] for value in line[kind])
                    rows.append((f"{kind} {line['name']}", *cells, "differs" if differs else ""))
    return rows


def metrics_table(points: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[object]]]:
    """Return columns and rows of metrics: time and attempt if known, then every metric of any point (pure)."""
    first = [name for name in ("at", "attempt") if not points or any(name in point for point in points)]
    names = list(dict.fromkeys(name for point in points for name in point["values"]))
    rows = [[*(point[name] for name in first), *(point["values"].get(name, "") for name in names)] for point in points]
    return [*first, *names], rows


def metrics_csv(points: Sequence[Mapping[str, Any]]) -> str:
    """Write metrics as CSV with a head line; times are seconds since the epoch (pure)."""
    columns, rows = metrics_table(points)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([json.dumps(cell) if isinstance(cell, dict | list) else cell for cell in row] for row in rows)
    return text.getvalue()


def _cell(name: str, value: object, group: str) -> str:
    from rdukit_platform.catalog.figures import figure_text

    if value is None:
        return "-"
    if group in {"metrics", "results", "durations"}:
        return f"{value:.6g}" if isinstance(value, float) and group != "durations" else figure_text(name, value)
    return value if isinstance(value, str) else json.dumps(value)
