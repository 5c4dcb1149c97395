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
from rdukit_platform.cli import connect, show
from rdukit_platform.cli.complete import ENDPOINTS
from rdukit_platform.cli.job_files import watched
from rdukit_platform.cli.token import VIEWED_TENANT


@click.group(cls=ExtensibleGroup)
def endpoint() -> None:
    """Run experts behind the gateway; update, roll back, call and delete them.

    Example: rdukit endpoint create digits --expert digits:2 --replicas 2

    Example: rdukit endpoint create chat --bundle bundle.yaml --wait
    """


_EXPERT = click.option("--expert", default=None, help="Expert to serve, NAME or NAME:VERSION.")
_BUNDLE = click.option(
    "--bundle", default=None, metavar="FILE|ID",
    help="Bundle of experts to serve: a bundle.yaml whose files are artifact://ID, or an artifact with one.",
)  # fmt: skip
_BOX = click.option("--box", default=None, help="Box to serve instead of an expert: NAME, or NAME:VERSION of your own.")
_PEF = click.option(
    "--pef",
    default=None,
    help="Artifact with the PEF (default: the expert's; chats need a PEF compiled with purpose=serve).",
)
_CHECKPOINT = click.option("--checkpoint", default=None, help="Artifact with the checkpoint (default: the expert's).")
_TILES = click.option(
    "--tiles",
    type=click.IntRange(1, 1024),
    default=None,
    help="Tiles of each replica [default: as the PEF needs].",
)
_IDLE_HELP = "Idle time, such as 15m, after which its replicas end until the next call; 0: never."
_IDLE = Duration()
_WAIT = click.option("--wait", is_flag=True, help="Wait until all wanted replicas are ready.")


@endpoint.command()
@click.argument("name", metavar="NAME")
@_EXPERT
@_BUNDLE
@_BOX
@_PEF
@_CHECKPOINT
@click.option("--replicas", type=click.IntRange(0, 64), default=1, show_default=True, help="Number of replicas.")
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

    Example: rdukit endpoint create chat --bundle bundle.yaml --wait
    """
    body = {"name": name, "expert": expert, "box": box, "pef": pef, "checkpoint": checkpoint, "tiles": tiles}
    with connect() as client, _added(client, bundle) as bundle_id:
        made = client.post("/v1/endpoints", {**body, "bundle": bundle_id, "replicas": replicas, "idle_s": idle_s})
        _tell(client, made, wait, as_json)


@endpoint.command("list")
@show.page_options
@VIEWED_TENANT
@JSON_OPTION
@TOKEN_OPTION
@watchable
def list_(limit: int, cursor: str | None, tenant: str | None, as_json: bool) -> None:
    """List endpoints, newest first.

    Example: rdukit endpoint list --limit 10

    Example: rdukit endpoint list --watch
    """
    with connect() as client:
        page = client.get("/v1/endpoints", limit=limit, cursor=cursor, tenant=tenant)
    rows = [
        (
            one["name"], one["state"], f"{one['ready']}/{wanted_replicas(one)}", one["revision"],
            one["expert"] or (f"{one['box']}, {len(one['models'])} models" if one["models"] else one["box"]),
            one["usage"]["requests"], show.ago(one["created_at"]),
        )
        for one in page["endpoints"]
    ]  # fmt: skip
    show.print_page(page, as_json, ("NAME", "STATE", "READY", "REVISION", "SERVES", "REQUESTS", "AGE"), rows)


@endpoint.command("show")
@click.argument("name", metavar="NAME", shell_complete=ENDPOINTS)
@VIEWED_TENANT
@JSON_OPTION
@TOKEN_OPTION
@watchable
def show_(name: str, tenant: str | None, as_json: bool) -> None:
    """Show an endpoint: its state, revisions, replicas and use.

    Example: rdukit endpoint show digits

    Example: rdukit endpoint show digits --watch
    """
    with connect() as client:
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
@click.option("--replicas", type=click.IntRange(0, 64), default=None, help="New number of replicas.")
@click.option(
    "--canary",
    type=click.IntRange(1, 99),
    default=None,
    metavar="PERCENT",
    help="Percentage of calls for the new revision or the present canary.",
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
    """Change what an endpoint serves, its number of replicas, or both.

    A new revision takes over one replica at a time; no request fails. With --canary it gets only some of the calls,
    until rdukit endpoint promote or rollback.

    Example: rdukit endpoint update digits --expert digits:3 --canary 10 --wait

    Example: rdukit endpoint update digits --replicas 3
    """
    body = {
        "expert": expert, "box": box, "pef": pef, "checkpoint": checkpoint, "tiles": tiles, "replicas": replicas,
        "canary": canary, "idle_s": idle_s,
    }  # fmt: skip
    with connect() as client, _added(client, bundle) as bundle_id:
        _tell(client, client.post(f"{_path(name)}/update", {**body, "bundle": bundle_id}), wait, as_json)


@endpoint.command()
@click.argument("name", metavar="NAME", shell_complete=ENDPOINTS)
@_WAIT
@JSON_OPTION
@TOKEN_OPTION
def promote(name: str, wait: bool, as_json: bool) -> None:
    """Promote the canary: it gets all calls, in place of the wanted revision.

    Example: rdukit endpoint promote digits --wait

    Example: rdukit endpoint promote chat
    """
    with connect() as client:
        _tell(client, client.post(f"{_path(name)}/promote", {}), wait, as_json)


@endpoint.command()
@click.argument("name", metavar="NAME", shell_complete=ENDPOINTS)
@click.option(
    "--revision", type=click.IntRange(1), default=None, help="Revision to return to [default: the previous one]."
)
@_WAIT
@JSON_OPTION
@TOKEN_OPTION
def rollback(name: str, revision: int | None, wait: bool, as_json: bool) -> None:
    """Serve an earlier revision again. If there is a canary, only the canary ends.

    Example: rdukit endpoint rollback digits --wait

    Example: rdukit endpoint rollback digits --revision 1
    """
    with connect() as client:
        _tell(client, client.post(f"{_path(name)}/rollback", {"revision": revision}), wait, as_json)


@endpoint.command()
@click.argument("name", metavar="NAME", shell_complete=ENDPOINTS)
@JSON_OPTION
@TOKEN_OPTION
def delete(name: str, as_json: bool) -> None:
    """Delete an endpoint: its replicas finish their requests and release their tiles.

    Example: rdukit endpoint delete digits

    Example: rdukit endpoint delete digits --context lab
    """
    with connect() as client:
        gone = client.delete(_path(name))
    show.print_answer(gone, as_json, f"deleted {name}")


@endpoint.command()
@click.argument("name", metavar="NAME", shell_complete=ENDPOINTS)
@click.option("--prompt", default=None, help="Text for /v1/chat/completions; the complete answer is printed.")
@click.option(
    "--rows",
    default=None,
    metavar="FILE",
    help="JSON file with a list of rows (numbers, or values by column name); -: stdin.",
)
@click.option("--model", default=None, help="Expert of a bundle for the prompt [default: the bundle's first].")
@click.option(
    "--max-tokens",
    type=click.IntRange(1),
    default=64,
    show_default=True,
    help="Largest number of tokens in the answer to a prompt.",
)
@click.option(
    "--temperature",
    type=click.FloatRange(0, 2),
    default=None,
    help="Sampling temperature; 0: always the likeliest token; higher: more random [default: the box's, 1].",
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

    Example: rdukit endpoint call chat --model coder --prompt "def " --max-tokens 40
    """
    if (prompt is None) == (rows is None):
        raise click.UsageError("Give either --prompt TEXT or --rows FILE.")
    if model is not None and prompt is None:
        raise click.UsageError(
            "--model chooses the expert for a --prompt; leave it out with --rows, which go to the only model."
        )
    if temperature is not None and prompt is None:
        raise click.UsageError("--temperature needs --prompt, because outputs for --rows are not sampled.")
    with connect() as client:
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
        if predictions and "value" in predictions[0]:
            show.print_table(("VALUE",), [(f"{p['value']:.6g}",) for p in predictions])
        else:
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
    """Yield the artifact of a bundle; a file becomes a new artifact, which is deleted if it is refused."""
    if bundle is None or not Path(bundle).is_file():
        yield bundle
        return
    from rdukit_platform.client.artifacts import add_artifact

    added = add_artifact(client, Path(bundle), "bundle")["id"]
    try:
        yield added
    except RdukitError:
        with suppress(RdukitError):  # kept if an endpoint uses it after all
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
    """Return the rows as a tensor for the model's first input; rows have the model's shape."""
    asked = model["inputs"][0]
    shape = [len(rows), *asked["shape"][1:]]
    return {
        "name": asked["name"],
        "datatype": asked["datatype"],
        "shape": shape,
        "data": [x for row in rows for x in row],
    }


def _tell(client: Any, changed: dict[str, Any], wait: bool, as_json: bool) -> None:
    """Print a changed endpoint; with ``wait``, after it has reached its wanted state."""
    from rdukit_platform.client.serving import wait_until_settled

    name = changed["name"]
    if wait:
        begun = changed
        with watched([name], "endpoint", "delete", lambda: begun, as_json=as_json):
            changed = wait_until_settled(client, changed)
    show.print_answer(
        changed, as_json, f"{name} is {changed['state']}: {ready_words(changed)}; see: rdukit endpoint show {name}"
    )


def wanted_replicas(endpoint: Mapping[str, Any]) -> int:
    """Return the number of wanted replicas, with the canary's (pure)."""
    canary = endpoint["canary"]
    return int(endpoint["replicas"]) + (int(canary["replicas"]) if canary else 0)


def ready_words(endpoint: Mapping[str, Any]) -> str:
    """Describe the ready replicas: in total, or per revision if there is a canary (pure)."""
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
    """Describe a revision's share of the calls."""
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
