"""``rdukit up`` and ``rdukit demo``: a platform on this machine."""

import json
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from rdukit.settings import resolve
from rdukit.units import elapsed_s, format_bytes, format_count, format_seconds
from rdukit_platform.settings import GATEWAY_HOST, GATEWAY_PORT, checked_home

if TYPE_CHECKING:
    from rdukit_platform.client.http import ApiClient
    from rdukit_platform.up.run import Running


@click.command()
@click.option("--port", type=click.IntRange(0, 65535), default=None, help="Port to listen on; 0: any free port.")
@click.option("--host", default=None, help="Address to listen on (default 127.0.0.1).")
@click.option("--json", "as_json", is_flag=True, help="Print the addresses as one line of JSON.")
def up(port: int | None, host: str | None, as_json: bool) -> None:
    """Start the platform on this machine and keep it running until Ctrl-C.

    Broker, node daemon, gateway, scheduler and worker run as child processes; their state is in $RDUKIT_HOME.

    Example: rdukit up --port 8080

    Example: rdukit up --host 0.0.0.0
    """
    from rdukit_platform.up.run import run_platform

    def announce(running: "Running") -> None:
        if as_json:
            click.echo(json.dumps(asdict(running)))
            return
        click.echo(f"ready in {running.ready_s} s")
        click.echo(f"REST      {running.url}   (OpenAPI: {running.docs})")
        click.echo(f"console   {running.console}")
        click.echo(f"token     {running.token_file}")
        click.echo(f"home      {running.home}")
        click.echo("stop with Ctrl-C")

    run_platform(checked_home(), resolve(GATEWAY_HOST, host), resolve(GATEWAY_PORT, port), announce)


#: Share of the held-out digits that the model must read right.
ACCURACY_BAR: Final = 0.90
NOT_GOOD_ENOUGH: Final = 4
STEPS: Final = ("preprocess", "compile", "train", "infer")


@click.command()
@click.argument("box", default="logreg")
@click.option("--home", type=click.Path(path_type=Path), default=None, help="Home folder (default: a new one).")
@click.option("--port", type=click.IntRange(0, 65535), default=0, show_default=True, help="Port; 0: any free port.")
@click.option("--json", "as_json", is_flag=True, help="Print the outcome as JSON.")
def demo(box: str, home: Path | None, port: int, as_json: bool) -> None:
    """Run preprocess, compile, train and infer on real digits, then stop.

    Starts the platform, runs the pipeline preprocess, compile, train, infer through its REST API, prints the accuracy
    on unseen digits, and stops everything. The exit status is 0 only if the accuracy reaches 0.90.

    Example: rdukit demo --home /tmp/demo

    Example: rdukit demo --port 8080 --json
    """
    from rdukit_platform.cli.demo_run import follow_pipeline, started_platform

    folder = (home or Path(tempfile.mkdtemp(prefix="rdukit-demo-"))).expanduser().absolute()
    with started_platform(folder, port) as (client, running):
        click.echo(f"platform ready in {running['ready_s']} s, console {running['console']}", err=True)
        pipeline = client.submit("/v1/pipelines", {"name": f"demo {box}", "steps": demo_steps(box)})
        pipeline = follow_pipeline(client, pipeline["id"])
        outcome = read_outcome(client, pipeline, folder, running)
    if as_json:
        from rdukit_platform.cli.show import print_json

        print_json(outcome)
    else:
        _print_outcome(outcome)
    if outcome["state"] != "succeeded" or not outcome["accuracy"] or outcome["accuracy"] <= ACCURACY_BAR:
        sys.exit(NOT_GOOD_ENOUGH)


def demo_steps(box: str) -> list[dict[str, object]]:
    """Return the pipeline: each step feeds the next."""
    built = {"pef": "@compile.pef", "dataset": "@preprocess.dataset"}
    inputs = {"train": built, "infer": {**built, "checkpoint": "@train.checkpoint"}}
    return [{"name": verb, "box": box, "verb": verb, "inputs": inputs.get(verb, {})} for verb in STEPS]


def read_outcome(client: "ApiClient", pipeline: dict[str, Any], home: Path, running: dict[str, Any]) -> dict[str, Any]:
    """Collect the demo's outcome over REST while the platform is up."""
    jobs = {job["step"]: job for job in pipeline["jobs"]}
    artifacts = []
    for job in pipeline["jobs"]:
        for slot, artifact_id in job["outputs"].items():
            found = client.get(f"/v1/artifacts/{artifact_id}")
            blob = home / "artifacts" / "blobs" / found["digest"][:2] / found["digest"]
            artifacts.append({"name": f"{job['step']}.{slot}", **found, "path": str(blob)})
    return {
        "state": pipeline["state"],
        "pipeline": pipeline["id"],
        "accuracy": (jobs["infer"]["result"] or {}).get("accuracy"),
        "results": {step: job["result"] for step, job in jobs.items()},
        "seconds": {step: _took(job) for step, job in jobs.items()},
        "errors": {step: job["error"] for step, job in jobs.items() if job["error"]},
        "artifacts": artifacts,
        "home": str(home),
        "console": running["console"],
    }


def _took(job: dict[str, Any]) -> float | None:
    return round(elapsed_s(job["started_at"], job["ended_at"]), 3) if job["ended_at"] and job["started_at"] else None


def _print_outcome(outcome: dict[str, Any]) -> None:
    from rdukit_platform.cli.show import print_table

    for step, error in outcome["errors"].items():
        click.echo(f"{step} failed: {error['message']} [{error['code']}]", err=True)
    rows = []
    for step in ("train", "infer"):
        result = outcome["results"][step] or {}
        emulated, host = result.get("emulated_seconds"), result.get("host_seconds")
        rows.append((f"{step}, time", _seconds(emulated), _seconds(host)))
        samples = result.get("samples")
        if samples and emulated and host:
            rows.append((f"{step}, samples/s", format_count(samples / emulated), format_count(samples / host)))
        if result.get("emulated_cycles"):
            rows.append((f"{step}, cycles", format_count(result["emulated_cycles"]), ""))
    rows += [(f"{step}, whole job", "", _seconds(took)) for step, took in outcome["seconds"].items()]
    click.echo()
    print_table(("FIGURE", "EMULATED RDU", "THIS HOST"), rows)
    click.echo()
    print_table(
        ("ARTIFACT", "ID", "SIZE", "CONTENT"),
        [(a["name"], a["id"], format_bytes(a["bytes"]), a["path"]) for a in outcome["artifacts"]],
    )
    click.echo(f"\nhome      {outcome['home']}; the platform was stopped; start it again with:")
    click.echo(f"          RDUKIT_HOME={outcome['home']} rdukit up")
    click.echo(f"console   {outcome['console']} (while the platform ran)")
    if outcome["accuracy"] is not None:
        click.echo(f"accuracy  {outcome['accuracy']:.4f} on held-out digits (bar: {ACCURACY_BAR:.2f})")
    else:
        click.echo(f"pipeline {outcome['pipeline']} is {outcome['state']}: no accuracy")


def _seconds(value: float | None) -> str:
    return "-" if value is None else format_seconds(value)
