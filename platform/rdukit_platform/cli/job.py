"""``rdukit job``: submit, list, show and watch jobs."""

import json
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from rdukit.cli.commands import (
    JSON_OPTION,
    TOKEN_OPTION,
    Choice,
    ExtensibleGroup,
    parse_name_values,
    parse_value,
)
from rdukit.cli.watch import watchable
from rdukit.errors import InvalidArgument
from rdukit_platform.cli import connect, show
from rdukit_platform.cli.complete import BOXES, JOBS
from rdukit_platform.cli.job_control import cancel, pause, queue_options, resume
from rdukit_platform.cli.job_files import NOT_SUCCEEDED, check_bodies, read_request, submit_body, submit_file
from rdukit_platform.cli.job_runs import clone, compare, metrics, profile
from rdukit_platform.cli.job_trace import trace
from rdukit_platform.cli.token import VIEWED_TENANT
from rdukit_platform.jobs.facts import queue_facts
from rdukit_platform.jobs.states import JobState


@click.group(cls=ExtensibleGroup)
def job() -> None:
    """Submit, list, show, watch, compare, clone, pause, resume and cancel jobs.

    Example: rdukit job submit logreg compile --wait

    Example: rdukit job list
    """


@job.command()
@click.argument("box", metavar="[BOX]", required=False, shell_complete=BOXES)
@click.argument("verb", metavar="[VERB]", required=False)
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="A parameter; repeat for more.")
@click.option("--input", "inputs", multiple=True, metavar="SLOT=ARTIFACT", help="An input; repeat for more.")
@click.option("--name", default=None, help="Name of the job.")
@queue_options
@click.option("--key", default=None, help="Idempotency key: the same key gives the same job.")
@click.option("--pipeline", type=click.Path(path_type=Path), default=None, help="A pipeline file (YAML) instead.")
@click.option(
    "-f", "--file", "file", type=click.Path(path_type=Path), help="File of jobs instead of BOX and VERB; -: stdin."
)
@click.option("--dry-run", is_flag=True, help="Only check the request on the platform, without recording it.")
@click.option("--wait", is_flag=True, help="Wait for the end; the exit status is 4 if the job does not succeed.")
@JSON_OPTION
@TOKEN_OPTION
def submit(
    box: str | None,
    verb: str | None,
    settings: Sequence[str],
    inputs: Sequence[str],
    name: str | None,
    queue: Mapping[str, object],
    key: str | None,
    pipeline: Path | None,
    file: Path | None,
    dry_run: bool,
    wait: bool,
    as_json: bool,
) -> None:
    """Submit a job, or the jobs of a file, or a pipeline of jobs.

    BOX is a ModelBox: NAME, or NAME:VERSION of one that you installed. VERB is preprocess, compile,
    train, infer or evaluate.

    Example: rdukit job submit logreg train --input pef=art-1 --input dataset=art-2 --set epochs=2

    Example: rdukit job submit logreg compile --wait
    """
    if file is not None:
        _check_alone("-f", {"file", "dry_run", "wait", "as_json"})
        submit_file(file, is_dry=dry_run, wait=wait, as_json=as_json)
        return
    if pipeline is not None:
        if dry_run:
            raise InvalidArgument("--dry-run cannot be combined with --pipeline; expected a job, or -f FILE")
        _check_alone("--pipeline", {"pipeline", "key", "wait", "as_json"})
        path, body = "/v1/pipelines", read_pipeline(pipeline, key)
    else:
        if not box or not verb:
            raise InvalidArgument(
                "BOX and VERB are missing; pass them, -f or --pipeline; list boxes with: rdukit box list"
            )
        if "/" in box:
            raise InvalidArgument(
                f"BOX {box} is a path; expected a box's name: install yours with `rdukit box install {box}`, which "
                f"prints its name"
            )
        parameters = {k: parse_value(v) for k, v in parse_name_values("--set", settings).items()}
        asked = {
            "box": box, "verb": verb, "parameters": parameters, "inputs": parse_name_values("--input", inputs),
            "name": name, "idempotency_key": key, **queue,
        }  # fmt: skip
        path, body = "/v1/jobs", {k: v for k, v in asked.items() if v is not None}
        if dry_run:
            check_bodies([body], as_json=as_json)
            return
    submit_body(path, body, wait=wait, as_json=as_json)


def _check_alone(option: str, allowed: Collection[str]) -> None:
    """Raise ``InvalidArgument`` if other options than ``allowed`` are combined with one that names a file."""
    context = click.get_current_context()
    others = [
        each.opts[0] if isinstance(each, click.Option) else str(each.name).upper()
        for each in context.command.params
        if each.name in context.params and each.name not in allowed
        and context.get_parameter_source(each.name) == ParameterSource.COMMANDLINE
    ]  # fmt: skip
    if others:
        raise InvalidArgument(f"{option} cannot be combined with {', '.join(others)}; set it in the file")


@job.command("list")
@click.option("--state", type=Choice([str(s) for s in JobState]), default=None, help="Show only jobs in this state.")
@click.option(
    "--label", "labels", multiple=True, metavar="KEY=VALUE", help="Show only jobs with this label; repeat for more."
)
@click.option(
    "--search", default=None, metavar="WORDS",
    help="Show only jobs with all these words in name, box, verb, reason, labels or submitter, or at the beginning of "
        "the id.",
)  # fmt: skip
@click.option(
    "--box", default=None, metavar="BOX", shell_complete=BOXES,
    help="Show only jobs of this box: NAME, or NAME:VERSION of one that you installed.",
)  # fmt: skip
@VIEWED_TENANT
@show.page_options
@JSON_OPTION
@TOKEN_OPTION
@watchable
def list_(
    state: str | None, labels: Sequence[str], search: str | None, box: str | None, tenant: str | None, limit: int,
    cursor: str | None, as_json: bool,
) -> None:  # fmt: skip
    """List jobs, newest first.

    Example: rdukit job list --state failed --label project=genes --search "gpt2 ada@"

    Example: rdukit job list --box gpt2 --state running --watch
    """
    wanted = [f"{key}={value}" for key, value in parse_name_values("--label", labels).items()]
    with connect() as client:
        asked: dict[str, Any] = {"state": state, "label": wanted or None, "q": search, "box": box, "tenant": tenant}
        page = client.get("/v1/jobs", limit=limit, cursor=cursor, **asked)
        # One answer examines a bounded number of jobs, so a page with a cursor may be short.
        while len(page["jobs"]) < limit and page["next_cursor"]:
            more = client.get("/v1/jobs", limit=limit - len(page["jobs"]), cursor=page["next_cursor"], **asked)
            page = {**more, "jobs": [*page["jobs"], *more["jobs"]]}
    columns = ("ID", "NAME", "BOX", "VERB", "STATE", "TRY", "AGE", "WHAT")
    show.print_page(page, as_json, columns, [_row(one) for one in page["jobs"]])


@job.command("show")
@click.argument("job_id", shell_complete=JOBS)
@VIEWED_TENANT
@JSON_OPTION
@TOKEN_OPTION
@watchable
def show_(job_id: str, tenant: str | None, as_json: bool) -> bool:
    """Show one job with its attempts, inputs, outputs and result.

    Example: rdukit job show job-7k2m9x41abcd

    Example: rdukit job show job-7k2m9x41abcd --watch
    """
    with connect() as client:
        found = client.get(f"/v1/jobs/{job_id}", tenant=tenant)
    if as_json:
        show.print_json(found)
        return found["ended_at"] is not None
    lines = [
        ("job", found["id"]),
        ("name", found["name"]),
        ("what", f"{found['verb']} of box {found['box']}, {found['tiles']} tiles"),
        ("members", f"{found['members']}, each with the job's tiles" if found["members"] > 1 else None),
        ("state", f"{found['state']}{' (' + found['reason'] + ')' if found['reason'] else ''}"),
        ("do", found["advice"] if found["reason"] != "completed" else None),
        ("waits for", found["waits_for"]),
        *queue_facts(found),
        *((f"label {k}", v) for k, v in found["labels"].items()),
        ("cached from", found["cached_from"]),
        ("pipeline", f"{found['pipeline']}, step {found['step']}" if found["pipeline"] else None),
        ("error", f"{found['error']['message']} [{found['error']['code']}]" if found["error"] else None),
        ("progress", show.describe_progress(found["progress"])),
        *((f"parameter {k}", v) for k, v in found["parameters"].items()),
        *((f"input {k}", v) for k, v in found["inputs"].items()),
        *((f"output {k}", v) for k, v in found["outputs"].items()),
        *((f"result {k}", v) for k, v in (found["result"] or {}).items()),
        ("submitted by", found["submitted_by"]),
        ("created", show.clock(found["created_at"])),
        ("started", show.clock(found["started_at"])),
        ("ended", show.clock(found["ended_at"])),
    ]
    show.print_fields(lines)
    for attempt in found["attempts"]:
        click.echo(show.describe_attempt(attempt))
    return found["ended_at"] is not None


@job.command()
@click.argument("job_id", shell_complete=JOBS)
@JSON_OPTION
@TOKEN_OPTION
@watchable
def why(job_id: str, as_json: bool) -> bool:
    """Explain why a job waits: a code as in Slurm's squeue, a sentence, and its latest start.

    The latest start needs run limits of the jobs before it. For a preempted job it prints the time and the other job;
    for a job with tiles, the nodes and the numbers of RDUs and XRDUs.

    Example: rdukit job why job-7k2m9x41abcd

    Example: rdukit job why job-7k2m9x41abcd --watch
    """
    with connect() as client:
        found = client.get(f"/v1/jobs/{job_id}")
    if as_json:
        names = ("id", "state", "reason", "advice", "wait_code", "waits_for", "estimated_start", "error")
        place = show.describe_place(found["attempts"][-1]) if found["attempts"] else ""
        preempted = show.describe_preemption(found)
        show.print_json(
            {**{name: found[name] for name in names}, "preempted": preempted or None, "place": place or None}
        )
    else:
        show.print_fields(show.describe_wait(found))
    return found["ended_at"] is not None


@job.command()
@click.argument("job_id", shell_complete=JOBS)
@click.option("--follow", is_flag=True, help="Follow the log until the job ends.")
@TOKEN_OPTION
def logs(job_id: str, follow: bool) -> None:
    """Print the log of a job's box; with --follow the job's events go to stderr.

    Example: rdukit job logs --follow job-7k2m9x41abcd

    Example: rdukit job logs job-7k2m9x41abcd
    """
    with connect() as client:
        if not follow:
            for line in client.lines(f"/v1/jobs/{job_id}/logs"):
                click.echo(line)
            return
        for event in client.follow(job_id):
            if event["kind"] == "log":
                click.echo(event["data"].get("line", ""))
            elif event["kind"] == "state":
                click.echo(f"{show.clock(event['at'])}  {show.describe_event(event)}", err=True)


@job.command()
@click.argument("job_id", shell_complete=JOBS)
@click.option("--json", "as_json", is_flag=True, help="Print each event as a line of JSON.")
@TOKEN_OPTION
def watch(job_id: str, as_json: bool) -> None:
    """Print what happens to a job until it ends; exit status 4 if it does not succeed.

    Example: rdukit job watch job-7k2m9x41abcd

    Example: rdukit job watch job-7k2m9x41abcd --json
    """
    with connect() as client:
        for event in client.follow(job_id):
            click.echo(json.dumps(event) if as_json else f"{show.clock(event['at'])}  {show.describe_event(event)}")
        if client.get(f"/v1/jobs/{job_id}")["state"] != "succeeded":
            sys.exit(NOT_SUCCEEDED)


for _command in (clone, compare, metrics, profile, trace, cancel, pause, resume):
    job.add_command(_command)


def read_pipeline(path: Path, key: str | None) -> dict[str, object]:
    """Return a pipeline file's content.

    Raises:
        NotFound: there is no such file.
        InvalidArgument: it is not a YAML mapping.
    """
    body = read_request(path, "pipeline", "name and steps")
    return {**body, "idempotency_key": key} if key else body


def _row(one: dict[str, Any]) -> Sequence[object]:
    what = one["waits_for"] or show.describe_progress(one["progress"])
    if one["state"] in {"succeeded", "failed", "cancelled"}:
        what = one["error"]["message"] if one["error"] else one["reason"]
    age = show.ago(one["created_at"])
    return one["id"], one["name"], one["box"], one["verb"], one["state"], one["attempt"], age, what or ""
