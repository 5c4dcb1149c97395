"""Call a verb of a running box from the terminal, with live progress on stderr and the operation on stdout."""

import json
from collections.abc import Mapping
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from rdukit.errors import Cancelled, RdukitError, error_from_body
from rdukit_modelbox.client import BoxClient


def call_verb(
    url: str,
    verb: str,
    parameters: Mapping[str, object],
    inputs: Mapping[str, str],
    output: str,
    key: str | None,
    as_json: bool,
    *,
    timeout_s: float = 0.0,
    resume: bool = False,
    webhook: str = "",
) -> int:
    """Submit, follow and print. Returns the exit status: 0, or that of the operation's error.

    Args:
        webhook: URL to announce the end to; empty: none.

    Raises:
        RdukitError: the box refused the request, or does not answer.
    """
    with BoxClient(url) as client:
        operation = client.submit(
            verb, parameters, inputs, output, key, timeout_s=timeout_s, resume=resume,
            webhook={"url": webhook} if webhook else None,
        )  # fmt: skip
        try:
            operation = _follow(client, operation, as_json)
        except KeyboardInterrupt:
            operation = client.cancel(operation["id"])
    if as_json:
        click.echo(json.dumps(operation, indent=2, sort_keys=True))
    else:
        _print_operation(operation)
    return _exit_status(operation)


def _follow(client: BoxClient, operation: dict[str, Any], as_json: bool) -> dict[str, Any]:
    console = Console(stderr=True, quiet=as_json)
    columns = (
        TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}"),
        TextColumn("{task.fields[figures]}"), TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=console, transient=not console.is_terminal) as bars:
        stages: dict[str, Any] = {}
        for event in client.events(operation["id"]):
            operation = event.get("operation", operation)
            if (told := event.get("progress")) is not None:
                stage = told["stage"]
                if stage not in stages:
                    stages[stage] = bars.add_task(stage, total=told["total"], figures="")
                bars.update(stages[stage], completed=told["step"], total=told["total"], figures=_figures(told))
            if (line := event.get("log")) is not None:
                bars.console.print(line, highlight=False)
    return operation


def _figures(told: Mapping[str, Any]) -> str:
    parts = [f"loss {told['loss']:.4f}"] if "loss" in told else []
    if "throughput" in told:
        parts.append(f"{told['throughput']:,.0f}/s")
    return "  ".join(parts)


def _print_operation(operation: Mapping[str, Any]) -> None:
    click.echo(f"{operation['id']}  {operation['verb']}  {operation['state']}")
    for name, value in {**operation.get("result", {}), **operation.get("outputs", {})}.items():
        click.echo(f"  {name:<24}{value}")
    if "error" in operation:
        click.echo(f"error [{operation['error']['code']}]: {operation['error']['message']}", err=True)


def _exit_status(operation: Mapping[str, Any]) -> int:
    if operation["state"] == "succeeded":
        return 0
    if operation["state"] == "cancelled":
        return Cancelled.exit_status
    return error_from_body({"error": operation.get("error", {})}, RdukitError).exit_status
