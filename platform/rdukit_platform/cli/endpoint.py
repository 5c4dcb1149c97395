"""``rdukit endpoint``: models of a tenant that run behind the gateway."""

import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click

from rdukit.cli.commands import JSON_OPTION, TOKEN_OPTION, Duration, ExtensibleGroup
from rdukit.cli.watch import watchable
from rdukit.errors import RdukitError
from rdukit.units import format_seconds
from rdukit_platform.cli.complete import ENDPOINTS
from rdukit_platform.cli.job_files import watched
from rdukit_platform.cli.token import VIEWED_TENANT


@click.group(cls=ExtensibleGroup)
def endpoint() -> None:
    """Run experts behind the gateway; update, roll back, call and delete them.

    Example: rdukit endpoint create digits --expert digits:2 --replicas 2
    """


_EXPERT = click.option("--expert", default=None, help="Expert to serve, NAME or NAME:VERSION.")
_BUNDLE = click.option(
    "--bundle", default=None, metavar="FILE|ID",
    help="Bundle of experts to serve: a bundle.yaml whose files are artifact://ID, or an artifact that is one.",
)  # fmt: skip
_BOX = click.option("--box", default=None, help="Box to serve instead, NAME or NAME:VERSION of one's own.")
_PEF = click.option(
    "--pef",
    default=None,
    help="Artifact with the PEF (default: the one that the expert was trained with; a chat needs one that was "
    "compiled with purpose=serve).",
)
_CHECKPOINT = click.option("--checkpoint", default=None, help="Artifact with the checkpoint (default: the expert's).")
_TILES = click.option(
    "--tiles", type=click.IntRange(1, 1024), default=None, help="Tiles of each replica [default: what the PEF needs]."
)
_IDLE_HELP = "Time without a call, such as 15m, after which it has no replicas until the next; 0: it keeps them."
_IDLE = Duration()
_WAIT = click.option("--wait", is_flag=True, help="Return when all replicas that are wanted are ready.")


@endpoint.command()
@click.argument("name", metavar="NAME")
@_EXPERT
@_BUNDLE
@_BOX
@_PEF
@_CHECKPOINT
@click.option("--replicas", type=click.IntRange(0, 64), default=1, show_default=True, help="How many boxes.")
@click.option("--idle", "idle_s", type=_IDLE, default=0.0, show_default=True, help=_IDLE_HELP)
@_TILES
@_WAIT
@JSON_OPTION
@TOKEN_OPTION
def create(
    name: str,
    expert: str | None,
    bundle: str | None,
    box: str | None,
    pef: str | None,
    checkpoint: str | None,
    replicas: int,
    idle_s: float,
    tiles: int | None,
    wait: bool,
    as_json: bool,
) -> None:
    """Serve an expert, a bundle of experts, or a box with a PEF and a checkpoint, under a name.

    Example: rdukit endpoint create digits --expert digits:2 --replicas 2 --wait
    """
    from rdukit_platform.client.http import ApiClient

    body = {"name": name, "expert": expert, "box": box, "pef": pef, "checkpoint": checkpoint, "tiles": tiles}
    with ApiClient.of_home() as client, _added(client, bundle) as bundle_id:
        made = client.post("/v1/endpoints", {**body, "bundle": bundle_id, "replicas": replicas, "idle_s": idle_s})
        _tell(client, made, wait, as_json)


@endpoint.command("list")
@click.option("--limit", type=click.IntRange(1, 200), default=50, show_default=True, help="How many at most.")
@click.option("--cursor", default=None, help="next_cursor of the page before.")
@VIEWED_TENANT
@JSON_OPTION
@TOKEN_OPTION
@watchable
def list_(limit: int, cursor: str | None, tenant: str | None, as_json: bool) -> None:
    """List endpoints, newest first.

    Example: rdukit endpoint list --limit 10
    """
    from rdukit_platform.cli import show
    from rdukit_platform.client.http import ApiClient

    with ApiClient.of_home() as client:
        page = client.get("/v1/endpoints", limit=limit, cursor=cursor, tenant=tenant)
    if as_json:
        show.print_json(page)
        return
    rows = [
        (
            one["name"], one["state"], f"{one['ready']}/{wanted_replicas(one)}", one["revision"],
            one["expert"] or (f"{one['box']}, {len(one['models'])} models" if one["models"] else one["box"]),
            one["usage"]["requests"], show.ago(one["created_at"]),
        )
        for one in page["endpoints"]
    ]  # fmt: skip
    show.print_table(("NAME", "STATE", "READY", "REVISION", "SERVES", "REQUESTS", "AGE"), rows)
    if page["next_cursor"]:
        click.echo(f"more with: --cursor {page['next_cursor']}", err=True)


@endpoint.command("show")
@click.argument("name", metavar="NAME", shell_complete=ENDPOINTS)
@VIEWED_TENANT
@JSON_OPTION
@TOKEN_OPTION
@watchable
def show_(name: str, tenant: str | None, as_json: bool) -> None:
    """Show an endpoint: its state, revisions, replicas, and how much it was used.

    Example: rdukit endpoint show digits
    """
    from rdukit_platform.cli import show
    from rdukit_platform.client.http import ApiClient

    with ApiClient.of_home() as client:
        found = client.get(_path(name), tenant=tenant)
        url = client.url
    if as_json:
        show.print_json(found)
        return
    used = found["usage"]
    lines = [
        ("endpoint", found["name"]),
        ("state", found["state"]),
        ("deprecated", found["deprecated"] and f"{found['expert']}: {found['deprecated']}"),
        ("replicas", f"{ready_words(found)}{_idle_words(found)}" if found["canary"] else
                     f"{found['ready']} ready, {found['replicas']} wanted{_idle_words(found)}"),
        ("url", f"{url}{found['path']}" + ("/v1" if found["bundle"] else f"/v2/models/{found['name']}/infer")),
        ("used", f"{used['requests']} requests, {used['failures']} failed, {used['rows']} rows, "
                 f"{used['prompt_tokens']}+{used['completion_tokens']} tokens"),
    ]  # fmt: skip
    show.print_fields(lines)
    click.echo()
    revisions = [
        (
            f"{one['number']}{_part_words(found, one['number'])}", one["expert"] or "-", one["box"], one["tiles"],
            one["bundle"] or one["pef"], one["checkpoint"] or "-", one["usage"]["requests"], one["usage"]["failures"],
            show.ago(one["created_at"]),
        )
        for one in found["revisions"]
    ]  # fmt: skip
    files = "PEF, BUNDLE" if any(one["bundle"] for one in found["revisions"]) else "PEF"
    show.print_table(("REVISION", "EXPERT", "BOX", "TILES", files, "CHECKPOINT", "CALLS", "FAILED", "AGE"), revisions)
    click.echo()
    if found["models"]:
        models = [
            (one["name"], one["kind"] if one["adapter_of"] is None else f"adapter of {one['adapter_of']}",
             ", ".join(one["aliases"]) or "-", one["usage"]["requests"],
             f"{one['usage']['prompt_tokens']}+{one['usage']['completion_tokens']}")
            for one in found["models"]
        ]  # fmt: skip
        show.print_table(("MODEL", "IS", "ALIASES", "CALLS", "TOKENS"), models)
        click.echo()
    replicas = [
        (one["id"], one["revision"], one["state"], one["node"] or "-", one["reason"] or "-",
         show.ago(one["created_at"]), (one["message"] or "").partition("\n")[0][:80])
        for one in found["instances"]
    ]  # fmt: skip
    show.print_table(("REPLICA", "REVISION", "STATE", "NODE", "REASON", "AGE", "MESSAGE"), replicas)


@endpoint.command()
@click.argument("name", metavar="NAME", shell_complete=ENDPOINTS)
@_EXPERT
@_BUNDLE
@_BOX
@_PEF
@_CHECKPOINT
@click.option("--replicas", type=click.IntRange(0, 64), default=None, help="How many boxes from now on.")
@click.option(
    "--canary",
    type=click.IntRange(1, 99),
    default=None,
    metavar="PERCENT",
    help="Part of the calls that the new revision, or the canary there is, gets.",
)
@click.option("--idle", "idle_s", type=_IDLE, default=None, help=_IDLE_HELP)
@_TILES
@_WAIT
@JSON_OPTION
@TOKEN_OPTION
def update(
    name: str,
    expert: str | None,
    bundle: str | None,
    box: str | None,
    pef: str | None,
    checkpoint: str | None,
    replicas: int | None,
    canary: int | None,
    idle_s: float | None,
    tiles: int | None,
    wait: bool,
    as_json: bool,
) -> None:
    """Serve something else under the name, by another number of replicas, or both.

    What is new takes over one replica at a time; no request fails. With --canary it gets a part of the calls only,
    until rdukit endpoint promote or rollback.

    Example: rdukit endpoint update digits --expert digits:3 --canary 10 --wait
    """
    from rdukit_platform.client.http import ApiClient

    body = {
        "expert": expert, "box": box, "pef": pef, "checkpoint": checkpoint, "tiles": tiles, "replicas": replicas,
        "canary": canary, "idle_s": idle_s,
    }  # fmt: skip
    with ApiClient.of_home() as client, _added(client, bundle) as bundle_id:
        _tell(client, client.post(f"{_path(name)}/update", {**body, "bundle": bundle_id}), wait, as_json)


@endpoint.command()
@click.argument("name", metavar="NAME", shell_complete=ENDPOINTS)
@_WAIT
@JSON_OPTION
@TOKEN_OPTION
def promote(name: str, wait: bool, as_json: bool) -> None:
    """Serve the canary to all calls, in place of the revision before it.

    Example: rdukit endpoint promote digits --wait
    """
    from rdukit_platform.client.http import ApiClient

    with ApiClient.of_home() as client:
        _tell(client, client.post(f"{_path(name)}/promote", {}), wait, as_json)


@endpoint.command()
@click.argument("name", metavar="NAME", shell_complete=ENDPOINTS)
@click.option(
    "--revision", type=click.IntRange(1), default=None, help="Revision to return to [default: the one before]."
)
@_WAIT
@JSON_OPTION
@TOKEN_OPTION
def rollback(name: str, revision: int | None, wait: bool, as_json: bool) -> None:
    """Serve an earlier revision again. A canary ends; where there is one, that is all.

    Example: rdukit endpoint rollback digits --wait
    """
    from rdukit_platform.client.http import ApiClient

    with ApiClient.of_home() as client:
        _tell(client, client.post(f"{_path(name)}/rollback", {"revision": revision}), wait, as_json)


@endpoint.command()
@click.argument("name", metavar="NAME", shell_complete=ENDPOINTS)
@JSON_OPTION
@TOKEN_OPTION
def delete(name: str, as_json: bool) -> None:
    """End an endpoint: its replicas answer what they have and give back their tiles.

    Example: rdukit endpoint delete digits
    """
    from rdukit_platform.cli import show
    from rdukit_platform.client.http import ApiClient

    with ApiClient.of_home() as client:
        gone = client.delete(_path(name))
    if as_json:
        show.print_json(gone)
    else:
        click.echo(f"deleted {name}")


@endpoint.command()
@click.argument("name", metavar="NAME", shell_complete=ENDPOINTS)
@click.option("--prompt", default=None, help="Text for /v1/chat/completions; the answer is printed whole.")
@click.option(
    "--rows",
    default=None,
    metavar="FILE",
    help="JSON file with a list of rows, - for stdin: numbers, or values by column name.",
)
@click.option("--model", default=None, help="Expert of a bundle that answers the prompt [default: its first].")
@click.option("--max-tokens", type=click.IntRange(1), default=64, show_default=True, help="Longest answer to a prompt.")
@click.option(
    "--temperature",
    type=click.FloatRange(0, 2),
    default=None,
    help="0: always the likeliest token, so the same answer each time; higher: more by chance [default: the box's, 1].",
)
@JSON_OPTION
@TOKEN_OPTION
def call(
    name: str,
    prompt: str | None,
    rows: str | None,
    model: str | None,
    max_tokens: int,
    temperature: float | None,
    as_json: bool,
) -> None:
    """Call an endpoint with a text, or with rows of numbers or of a table.

    Example: rdukit endpoint call digits --rows rows.json
    """
    from rdukit_platform.cli import show
    from rdukit_platform.client.http import ApiClient

    if (prompt is None) == (rows is None):
        raise click.UsageError("Give either --prompt TEXT or --rows FILE.")
    if model is not None and prompt is None:
        raise click.UsageError("--model names who answers a --prompt; --rows go to the endpoint's only model.")
    if temperature is not None and prompt is None:
        raise click.UsageError("--temperature goes with --prompt; what --rows give is not chosen by chance.")
    with ApiClient.of_home() as client:
        if prompt is not None:
            messages = [{"role": "user", "content": prompt}]
            model = model or client.get(f"{_path(name)}/v1/models")["data"][0]["id"]
            body = {"model": model, "messages": messages, "max_tokens": max_tokens}
            body |= {} if temperature is None else {"temperature": temperature}
            answer = client.post(f"{_path(name)}/v1/chat/completions", body)
            if as_json:
                show.print_json(answer)
            else:
                click.echo(answer["choices"][0]["message"]["content"])
            return
        model_path = f"{_path(name)}/v2/models/{quote(name, safe='')}"
        given = _read_rows(str(rows))
        if isinstance(given[0], dict):
            answer = client.post(f"{model_path}/rows", {"rows": given})
        else:
            answer = client.post(f"{model_path}/infer", {"inputs": [_tensor(client.get(model_path), given)]})
    if as_json:
        show.print_json(answer)
        return
    if "predictions" in answer:
        predictions = answer["predictions"]
        show.print_table(("LABEL", "PROBABILITY"), [(p["label"], f"{p['probability']:.4f}") for p in predictions])
        return
    for output in answer["outputs"]:
        click.echo(f"{output['name']}  {output['datatype']} {output['shape']}")
        width = max(len(output["data"]) // max(output["shape"][0], 1), 1)
        for at in range(0, len(output["data"]), width):
            values = output["data"][at : at + width]
            words = [f"{value:.6g}" if isinstance(value, float) else str(value) for value in values[:12]]
            click.echo("  " + " ".join(words) + (" …" if len(values) > len(words) else ""))


@contextmanager
def _added(client: Any, bundle: str | None) -> Iterator[str | None]:
    """Yield the artifact of a bundle: a file is added as one, and taken back where it is refused."""
    if bundle is None or not Path(bundle).is_file():
        yield bundle
        return
    from rdukit_platform.client.artifacts import add_artifact

    added = add_artifact(client, Path(bundle), "bundle")["id"]
    try:
        yield added
    except RdukitError:
        with suppress(RdukitError):  # an endpoint has it after all
            client.delete(f"/v1/artifacts/{added}")
        raise


def _read_rows(file: str) -> list[Any]:
    try:
        value = json.loads(sys.stdin.read() if file == "-" else Path(file).read_text())
    except OSError as cause:
        raise click.UsageError(f"--rows: {file} cannot be read: {cause.strerror}") from cause
    except ValueError as cause:
        raise click.UsageError(f"--rows: {file} is not JSON: {cause}") from cause
    kinds = {type(row) for row in value} if isinstance(value, list) else set()
    if kinds not in ({list}, {dict}):
        raise click.UsageError("--rows: expected a JSON list of rows, each a list of numbers, or each an object.")
    rows: list[Any] = value
    return rows


def _tensor(model: Mapping[str, Any], rows: list[list[float]]) -> dict[str, Any]:
    """Return the model's first input with the rows in it; the shape of a row is the model's."""
    asked = model["inputs"][0]
    shape = [len(rows), *asked["shape"][1:]]
    return {
        "name": asked["name"],
        "datatype": asked["datatype"],
        "shape": shape,
        "data": [x for row in rows for x in row],
    }


def _tell(client: Any, changed: dict[str, Any], wait: bool, as_json: bool) -> None:
    """Print what was changed, once it is as wanted with ``wait``."""
    from rdukit_platform.cli import show
    from rdukit_platform.client.serving import wait_until_settled

    name = changed["name"]
    if wait:
        begun = changed
        with watched([name], "endpoint", "delete", lambda: begun, as_json=as_json):
            changed = wait_until_settled(client, changed)
    if as_json:
        show.print_json(changed)
    else:
        click.echo(f"{name} is {changed['state']}: {ready_words(changed)}; look at it: rdukit endpoint show {name}")


def wanted_replicas(endpoint: Mapping[str, Any]) -> int:
    """Return how many replicas are wanted, a canary's among them (pure)."""
    canary = endpoint["canary"]
    return int(endpoint["replicas"]) + (int(canary["replicas"]) if canary else 0)


def ready_words(endpoint: Mapping[str, Any]) -> str:
    """Say how many replicas are ready: in all, or of each revision where there is a canary (pure)."""
    canary = endpoint["canary"]
    if canary is None:
        return f"revision {endpoint['revision']}, {endpoint['ready']} of {endpoint['replicas']} replicas ready"
    ready = Counter(one["revision"] for one in endpoint["instances"] if one["state"] == "ready")
    number, percent = canary["revision"], canary["percent"]
    return (
        f"revision {endpoint['revision']} ({100 - percent} %), "
        f"{ready[endpoint['revision']]} of {endpoint['replicas']} ready; "
        f"canary revision {number} ({percent} %), {ready[number]} of {canary['replicas']} ready"
    )


def _part_words(endpoint: Mapping[str, Any], revision: int) -> str:
    """Say which part of the calls goes to a revision."""
    canary = endpoint["canary"]
    if canary is not None and revision in {canary["revision"], endpoint["revision"]}:
        percent = canary["percent"]
        return f" {percent if revision == canary['revision'] else 100 - percent}%"
    return " *" if revision == endpoint["revision"] else ""


def _idle_words(endpoint: Mapping[str, Any]) -> str:
    idle_s = endpoint["idle_s"]
    return "" if idle_s is None else f", none after {format_seconds(idle_s)} without a call"


def _path(name: str) -> str:
    return f"/v1/endpoints/{quote(name, safe='')}"
