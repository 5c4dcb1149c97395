"""Submission of what a command has read: jobs and pipelines, followed to their end with ``--wait``."""

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:
    from rdukit_platform.client.http import ApiClient

#: Exit status of a command that waited for a job which did not succeed.
NOT_SUCCEEDED: Final = 4


def submit_body(path: str, body: Mapping[str, object], *, wait: bool, as_json: bool) -> None:
    """Submit what ``path`` takes, as ``submit_bodies``."""
    submit_bodies(path, [body], wait=wait, as_json=as_json)


def submit_bodies(path: str, bodies: Sequence[Mapping[str, object]], *, wait: bool, as_json: bool) -> None:
    """Submit what ``path`` takes and print its jobs' ids; with ``wait`` follow them. One fails: exit status 4."""
    from rdukit_platform.cli import show
    from rdukit_platform.client.http import ApiClient

    with ApiClient.of_home() as client:
        submitted = [client.submit(path, body) for body in bodies]
        jobs = [job for one in submitted for job in one.get("jobs", [one])]
        if wait:
            for one in jobs:
                click.echo(f"{one['id']} goes on without this command; rdukit job cancel ends it", err=True)
            jobs = [_wait(client, one["id"], is_quiet=as_json) for one in jobs]
            submitted = [client.get(f"{path}/{one['id']}") for one in submitted] if "jobs" in submitted[0] else jobs
        if as_json:
            show.print_json(submitted[0] if len(submitted) == 1 else submitted)
        elif not wait:
            click.echo("\n".join(one["id"] for one in jobs))
        if wait and any(one["state"] != "succeeded" for one in jobs):
            sys.exit(NOT_SUCCEEDED)


def _wait(client: "ApiClient", job_id: str, is_quiet: bool) -> dict[str, Any]:
    from rdukit_platform.cli import show

    for event in client.follow(job_id):
        if not is_quiet:
            click.echo(f"{job_id}  {show.describe_event(event)}", err=True)
    return client.get(f"/v1/jobs/{job_id}")
