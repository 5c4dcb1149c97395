"""``rdukit job cancel``, ``pause`` and ``resume``, and the options by which jobs are queued."""

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, TypeVar

import click

from rdukit.cli.commands import JSON_OPTION, TOKEN_OPTION, Duration, parse_name_values
from rdukit_platform.cli import connect, show
from rdukit_platform.cli.complete import JOBS
from rdukit_platform.jobs.choices import JobChoice
from rdukit_platform.jobs.fields import CHOICES

R = TypeVar("R")

_TIME: Final = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d")


class Deadline(click.ParamType[dict[str, object]]):
    """Click type: a time with its zone, or a duration from now; converted to the keys of a request."""

    name = "TIME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, object]:
        """Return ``deadline`` or ``deadline_s``."""
        if isinstance(value, dict):
            return value
        text = str(value).strip()
        try:
            if not _TIME.match(text):
                return {"deadline_s": Duration().convert(text, param, ctx)}
            at = datetime.fromisoformat(text)
        except (ValueError, click.BadParameter):
            self.fail(f"{text!r} is not a time; expected a value such as 2h or 2026-11-30T08:00Z", param, ctx)
        if at.tzinfo is None:
            self.fail(f"{text!r} has no time zone; expected {text}Z for UTC, or {text}+01:00", param, ctx)
        return {"deadline": at.isoformat()}


def _plain_option(choice: JobChoice) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return the option of a plain field of a request."""
    names, help_ = (choice.option, choice.name), choice.help
    if choice.kind == "bool":
        return click.option(*names, is_flag=True, help=help_)
    if choice.kind == "labels":
        return click.option(*names, multiple=True, metavar="KEY=VALUE", help=f"{help_} Repeat for more.")
    kinds: dict[str, Any] = {"int": click.IntRange, "float": click.FloatRange}
    type_ = kinds[choice.kind](choice.lowest, choice.highest) if choice.kind in kinds else str
    return click.option(*names, type=type_, default=None, help=help_)


#: Options by which jobs are queued: those of plain fields, then those with a form of their own.
_QUEUE_OPTIONS: Final = (
    *map(_plain_option, CHOICES),
    click.option(
        "--run-limit", "run_limit_s", type=Duration(), default=None,
        help="Run limit of an attempt, such as 90s, 15m or 2h; jobs with short limits may start earlier.",
    ),
    click.option("--label", "labels", multiple=True, metavar="KEY=VALUE", help="Label KEY=VALUE; repeat for more."),
    click.option(
        "--deadline", type=Deadline(), default=None,
        help="Deadline, such as 2h (from now) or 2026-11-30T08:00Z; the job fails if it misses it.",
    ),
    click.option(
        "--retry-on", "retry_on", multiple=True, metavar="CAUSE",
        help="Retry only after this outcome of an attempt, such as box-lost, or this error code; repeat for more.",
    ),
    click.option("--retry-backoff", type=Duration(), default=None, help="First pause; it doubles after each failure."),
    click.option("--retry-max-backoff", type=Duration(), default=None, help="Longest pause before an attempt."),
)  # fmt: skip


def queue_options(command: Callable[..., R]) -> Callable[..., R]:
    """Add the options by which jobs are queued; the command gets them as ``queue``, the keys of a request."""

    @functools.wraps(command)
    def gathered(**values: Any) -> R:
        given = {name: values.pop(name) for name in names}
        return command(queue=_queue_body(**given), **values)

    before = {each.name for each in getattr(command, "__click_params__", ())}
    with_options: Callable[..., R] = gathered
    for option in reversed(_QUEUE_OPTIONS):
        with_options = option(with_options)
    names = [each.name for each in with_options.__click_params__ if each.name not in before]  # type: ignore[attr-defined]
    return with_options


def _queue_body(
    *,
    run_limit_s: float | None,
    labels: Sequence[str],
    deadline: Mapping[str, object] | None,
    retry_on: Sequence[str],
    retry_backoff: float | None,
    retry_max_backoff: float | None,
    **plain: Any,
) -> dict[str, object]:
    """Return the keys of a request that the options stand for (pure)."""
    policy = {"on": list(retry_on) or None, "backoff_s": retry_backoff, "max_backoff_s": retry_max_backoff}
    given: dict[str, object] = {
        "run_limit_s": run_limit_s, **(deadline or {}),
        "labels": parse_name_values("--label", labels) or None,
        "retry": {name: value for name, value in policy.items() if value is not None} or None,
    }  # fmt: skip
    for choice in CHOICES:
        value = plain[choice.name]
        if choice.kind == "labels":
            value = parse_name_values(choice.option, value) or None
        given[choice.name] = None if value is False else value
    return {name: value for name, value in given.items() if value is not None}


@click.command()
@click.argument("job_id", shell_complete=JOBS)
@JSON_OPTION
@TOKEN_OPTION
def cancel(job_id: str, as_json: bool) -> None:
    """Cancel a job at once, in any open state.

    Example: rdukit job cancel job-7k2m9x41abcd

    Example: rdukit job cancel job-7k2m9x41abcd --context lab
    """
    _change(job_id, "cancel", as_json)


@click.command()
@click.argument("job_id", shell_complete=JOBS)
@JSON_OPTION
@TOKEN_OPTION
def pause(job_id: str, as_json: bool) -> None:
    """Pause a job until it is resumed. A running training writes a checkpoint, and its tiles are freed.

    Example: rdukit job pause job-7k2m9x41abcd

    Example: rdukit job pause job-7k2m9x41abcd --context lab
    """
    _change(job_id, "pause", as_json)


@click.command()
@click.argument("job_id", shell_complete=JOBS)
@JSON_OPTION
@TOKEN_OPTION
def resume(job_id: str, as_json: bool) -> None:
    """Resume a paused job: a training from its checkpoint, other verbs from the beginning.

    Example: rdukit job resume job-7k2m9x41abcd

    Example: rdukit job resume job-7k2m9x41abcd --context lab
    """
    _change(job_id, "resume", as_json)


def _change(job_id: str, act: str, as_json: bool) -> None:
    with connect() as client:
        found = client.post(f"/v1/jobs/{job_id}/{act}")
    if as_json:
        show.print_json(found)
    else:
        why = f": {found['waits_for']}" if found["waits_for"] else ""
        click.echo(f"{found['id']} is {found['state']}{why}")
