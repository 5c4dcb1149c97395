"""Call a verb of a running box from the terminal, with live progress on stderr and the operation on stdout."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from rdukit.box.client import BoxClient
from rdukit.errors import Cancelled, RdukitError, error_from_body
from rdukit.settings import TOKEN, resolve
from rdukit.units import plain


@dataclass(frozen=True, slots=True)
class Asked:
    """A verb's request."""

    verb: str
    parameters: Mapping[str, object]
    inputs: Mapping[str, str]
    output: str = ""
    timeout_s: float = 0.0


def connect(url: str, token: str | None = None) -> BoxClient:
    """Make a client of the box at ``url``, with the given token, or that of the settings.

    Raises:
        InvalidArgument: the address or the token is not valid.
    """
    return BoxClient(url, token=resolve(TOKEN, token))


def call_verb(
    url: str, asked: Asked, *, token: str | None = None, is_detached: bool = False, as_json: bool = False
) -> int:  # fmt: skip
    """Submit, follow unless ``is_detached``, and print. Returns the exit status: 0, or that of the operation's error.

    Raises:
        RdukitError: the box refused the request, or does not answer.
    """
    with connect(url, token) as client:
        operation = client.submit(
            asked.verb, asked.parameters, asked.inputs, asked.output, timeout_s=asked.timeout_s
        )  # fmt: skip
        if is_detached:
            show_operation(operation, as_json=as_json)
            return 0
        try:
            operation = _follow(client, operation, as_json)
        except KeyboardInterrupt:
            operation = client.cancel(operation["id"])
    show_operation(operation, as_json=as_json)
    return _exit_status(operation)


def watch_operation(url: str, operation_id: str, *, token: str | None = None, as_json: bool = False) -> int:
    """Follow an earlier operation, and print it. Returns the exit status as ``call_verb`` does.

    Raises:
        NotFound: no such operation.
    """
    with connect(url, token) as client:
        try:
            operation = _follow(client, client.operation(operation_id), as_json)
        except KeyboardInterrupt:
            click.echo(
                f"{operation_id} continues; to cancel it: rdukit box cancel --url {url} {operation_id}", err=True
            )
            raise
    show_operation(operation, as_json=as_json)
    return _exit_status(operation)


def show_operation(operation: Mapping[str, Any], *, as_json: bool) -> None:
    """Print an operation; its error goes to stderr."""
    if as_json:
        click.echo(json.dumps(operation, indent=2, sort_keys=True))
        return
    click.echo(f"{operation['id']}  {operation['verb']}  {operation['state']}")
    values = {**operation.get("result", {}), **operation.get("outputs", {})}
    if isinstance(fitting := values.get("compile_parameters"), dict):
        # In the form of the next command's options.
        values["compile_parameters"] = " ".join(f"--set {name}={plain(v)}" for name, v in fitting.items()) or "none"
    width = max(map(len, values), default=0)
    for name, value in values.items():
        click.echo(f"  {name:<{width}}  {plain(value)}")
    if "error" in operation:
        click.echo(f"error [{operation['error']['code']}]: {operation['error']['message']}", err=True)


def _follow(client: BoxClient, operation: dict[str, Any], as_json: bool) -> dict[str, Any]:
    with ProgressBars(is_quiet=as_json) as bars:
        for event in client.events(operation["id"]):
            operation = event.get("operation", operation)
            if (progress := event.get("progress")) is not None:
                bars.tell(progress)
            if (line := event.get("log")) is not None:
                bars.log(line)
    return operation


class ProgressBars:
    """The progress of verbs on stderr: a bar for each stage, log lines above them."""

    def __init__(self, *, is_quiet: bool) -> None:
        console = Console(stderr=True, quiet=is_quiet)
        columns = (
            TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}"),
            TextColumn("{task.fields[figures]}"),
        )  # fmt: skip
        self._bars = Progress(*columns, console=console, transient=not console.is_terminal)
        self._stages: dict[str, Any] = {}

    def __enter__(self) -> "ProgressBars":
        self._bars.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bars.stop()

    def tell(self, progress: Mapping[str, Any], prefix: str = "") -> None:
        """Show a verb's progress event; stages of another ``prefix`` have bars of their own."""
        stage = f"{prefix}{progress['stage']}"
        if stage not in self._stages:
            self._stages[stage] = self._bars.add_task(stage, total=progress["total"], figures="")
        self._bars.update(
            self._stages[stage], completed=progress["step"], total=progress["total"], figures=_figures(progress)
        )  # fmt: skip

    def log(self, line: str) -> None:
        """Print a line above the bars."""
        self._bars.console.print(line, highlight=False, markup=False, soft_wrap=True)


def _figures(progress: Mapping[str, Any]) -> str:
    loss, rate, left_s = (progress.get(name) for name in ("loss", "throughput", "eta_s"))
    parts = [] if loss is None else [f"loss {loss if isinstance(loss, str) else f'{loss:.4f}'}"]
    if isinstance(rate, int | float):
        parts.append(f"{rate:,.0f}/s")
    if isinstance(left_s, int | float) and left_s:
        parts.append(f"{timedelta(seconds=math.ceil(left_s))} left")
    return "  ".join(parts)


def _exit_status(operation: Mapping[str, Any]) -> int:
    if operation["state"] == "succeeded":
        return 0
    if operation["state"] == "cancelled":
        return Cancelled.exit_status
    return error_from_body({"error": operation.get("error", {})}, RdukitError).exit_status
