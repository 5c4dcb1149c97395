"""``rdukit box call|operations|watch|cancel``: a running box's verbs and operations from the terminal."""

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, Final

import click

from rdukit.cli.commands import BOX_TOKEN_OPTION, JSON_OPTION, Choice, given_token, parse_name_values, parse_value
from rdukit.cli.tables import print_table
from rdukit.errors import InvalidArgument
from rdukit_modelbox.contract.box import Verb
from rdukit_modelbox.operations.values import REMOVED_FIELDS, OperationState

URL_OPTION: Final = click.option(
    "--url", default="http://127.0.0.1:9000", show_default=True, help="REST address of the box."
)
Command = Callable[..., Any]
ID_ARGUMENT: Final = click.argument("operation_id", metavar="OPERATION")


def _removed(option: str, field: str, *, is_flag: bool = False) -> Callable[[Command], Command]:
    """Return a hidden option of 0.1.0, which is refused with what replaces it."""

    def refuse(context: click.Context, parameter: click.Parameter, value: object) -> None:
        if value is not None and value is not False:
            raise InvalidArgument(f"{option} was removed after 0.1.0: {REMOVED_FIELDS[field]}", field=field)

    return click.option(option, is_flag=is_flag, hidden=True, expose_value=False, callback=refuse)


@click.command()
@URL_OPTION
@BOX_TOKEN_OPTION
@click.argument("verb", type=Choice([str(v) for v in Verb]))
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="A parameter; repeat for more.")
@click.option("--input", "inputs", multiple=True, metavar="SLOT=PATH", help="An input artifact; repeat for more.")
@click.option("--output", default="", help="Folder for the outputs [default: in the box's state folder].")
@click.option("--timeout", "timeout_s", default=0.0, metavar="SECONDS", help="Timeout; 0: no limit.")
@_removed("--key", "idempotency_key")
@_removed("--resume", "resume", is_flag=True)
@_removed("--webhook", "webhook")
@click.option("--detach", is_flag=True, help="Return at once; rdukit box watch follows the operation.")
@JSON_OPTION
def call(
    url: str,
    verb: str,
    settings: Sequence[str],
    inputs: Sequence[str],
    output: str,
    timeout_s: float,
    detach: bool,
    as_json: bool,
) -> None:
    """Call a verb of a running box, and follow the operation to its end; Ctrl-C cancels it.

    Relative paths are those of this folder; the box must see them (its --mount).

    Example: rdukit box call train --set epochs=2 --input pef=logreg/logreg.pef --input dataset=/tmp/data

    Example: rdukit box call infer --input dataset=/tmp/data --detach
    """
    from rdukit_modelbox.cli.call import Asked, call_verb

    parameters = {name: parse_value(text) for name, text in parse_name_values("--set", settings).items()}
    paths = {slot: _from_here(text) for slot, text in parse_name_values("--input", inputs).items()}
    asked = Asked(verb, parameters, paths, _from_here(output) if output else "", timeout_s)
    sys.exit(call_verb(url, asked, token=given_token(), is_detached=detach, as_json=as_json))


@click.command()
@URL_OPTION
@BOX_TOKEN_OPTION
@click.option("--state", type=Choice([str(s) for s in OperationState]), help="Show only operations in this state.")
@click.option("--verb", type=Choice([str(v) for v in Verb]), help="Show only operations of this verb.")
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True, help="Largest number of rows.")
@JSON_OPTION
def operations(url: str, state: str | None, verb: str | None, limit: int, as_json: bool) -> None:
    """List a running box's operations since its start, newest first.

    Example: rdukit box operations --state failed

    Example: rdukit box operations --verb train --limit 5
    """
    from rdukit_modelbox.cli.call import connect

    with connect(url, given_token()) as client:
        found = list(islice(client.operations(state or "", verb or ""), limit))
    if as_json:
        click.echo(json.dumps(found, indent=2))
        return
    rows = []
    for one in found:
        begun = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(one["created_at"]))
        last = one.get("progress", {})
        progress = f"{last['stage']} {last['step']}/{last['total']}" if last else ""
        rows.append((one["id"], one["verb"], one["state"], begun, progress, one.get("error", {}).get("code", "")))
    print_table(("OPERATION", "VERB", "STATE", "ASKED", "PROGRESS", "ERROR"), rows)


@click.command()
@URL_OPTION
@BOX_TOKEN_OPTION
@ID_ARGUMENT
@JSON_OPTION
def watch(url: str, operation_id: str, as_json: bool) -> None:
    """Follow an operation to its end, from its first event. Ctrl-C leaves it running.

    Example: rdukit box watch op-0123456789abcdef

    Example: rdukit box watch op-0123456789abcdef --json
    """
    from rdukit_modelbox.cli.call import watch_operation

    sys.exit(watch_operation(url, operation_id, token=given_token(), as_json=as_json))


@click.command()
@URL_OPTION
@BOX_TOKEN_OPTION
@ID_ARGUMENT
@JSON_OPTION
def cancel(url: str, operation_id: str, as_json: bool) -> None:
    """Cancel an operation, queued or running. Waits until it has ended.

    Example: rdukit box cancel op-0123456789abcdef

    Example: rdukit box cancel op-0123456789abcdef --json
    """
    from rdukit_modelbox.cli.call import connect, show_operation

    with connect(url, given_token()) as client:
        show_operation(client.cancel(operation_id), as_json=as_json)


def _from_here(text: str) -> str:
    """Return a relative path as one from the caller's folder; return URIs and absolute paths unchanged."""
    return text if "://" in text or text.startswith("/") else os.path.abspath(text)


OPERATION_COMMANDS: Final = (call, operations, watch, cancel)
