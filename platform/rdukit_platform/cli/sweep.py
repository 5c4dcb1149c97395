"""``rdukit sweep``: try a training with several values of its parameters."""

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import click

from rdukit.cli.commands import JSON_OPTION, TOKEN_OPTION, Duration, ExtensibleGroup, parse_name_values, parse_value
from rdukit.cli.watch import watchable
from rdukit.errors import InvalidArgument
from rdukit_platform.cli import connect, show
from rdukit_platform.cli.complete import SWEEPS
from rdukit_platform.cli.job_files import NOT_SUCCEEDED, read_request, watched

#: Seconds between polls of a waiting command.
LOOK_S: Final = 1.0
#: Split that trials are compared on → words after the objective.
_SPLITS: Final[Mapping[str | None, str]] = {
    "dev": ", on the dev split",
    "test": ", on the test split, which trainings also report, so the best figures are too good",
}


@click.group(cls=ExtensibleGroup)
def sweep() -> None:
    """Run a training with several values of its parameters, and show the best ones.

    Example: rdukit sweep list

    Example: rdukit sweep list --watch
    """


@sweep.command()
@click.argument("file", metavar="[FILE]", type=click.Path(path_type=Path), required=False)
@click.option("--box", default=None, help="ModelBox, NAME or NAME:VERSION.")
@click.option("--verb", default="train", show_default=True, help="Verb of the box.")
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="A parameter of all trials.")
@click.option("--input", "inputs", multiple=True, metavar="SLOT=ARTIFACT", help="An input of all trials.")
@click.option(
    "--grid", multiple=True, metavar="NAME=V,V", help="Values of a parameter; the sweep tries all combinations."
)
@click.option("--random", multiple=True, metavar="NAME=SPEC", help="Draw values from V,V or LOW:HIGH[:log][:int].")
@click.option(
    "--optuna", multiple=True, metavar="NAME=SPEC", help="Like --random, but Optuna chooses values by earlier results."
)
@click.option("--minimize", default=None, metavar="METRIC", help="Metric to minimize (default: loss).")
@click.option("--maximize", default=None, metavar="METRIC", help="Metric to maximize.")
@click.option(
    "--split", type=click.Choice(["dev", "test"]), default=None,
    help="Split to compare on (default: dev, if the box reports the metric on it).",
)  # fmt: skip
@click.option("--max-trials", type=click.IntRange(1), default=None, help="Trials (default: the whole grid, or 20).")
@click.option("--max-parallel", type=click.IntRange(1), default=None, help="Concurrent trials (default: 2).")
@click.option("--seed", type=click.IntRange(0), default=None, help="Seed of drawn values (default: 0).")
@click.option(
    "--stop-early",
    default=None,
    metavar="METRIC[:maximize]",
    help="Metric by which trials worse than the median are stopped.",
)
@click.option("--stop-after", type=click.IntRange(0), default=None, help="First step at which trials may be stopped.")
@click.option(
    "--stop-trials",
    type=click.IntRange(1),
    default=None,
    help="Number of successful trials before any is stopped (default: 3).",
)
@click.option("--tiles", type=click.IntRange(0), default=None, help="RDU tiles per trial.")
@click.option(
    "--priority", type=int, default=None, help="Priority of the trials; the highest starts first (default: 0)."
)
@click.option("--run-limit", type=Duration(), default=None, help="Run limit of a trial's attempt, such as 15m.")
@click.option(
    "--label", "labels", multiple=True, metavar="KEY=VALUE", help="Label KEY=VALUE of the trials; repeat for more."
)
@click.option("--name", default=None, help="Name of the sweep.")
@click.option("--key", default=None, help="Idempotency key: the same key gives the same sweep.")
@click.option("--wait", is_flag=True, help="Wait for the end; the exit status is 4 if the sweep does not succeed.")
@JSON_OPTION
@TOKEN_OPTION
def submit(file: Path | None, wait: bool, as_json: bool, **options: Any) -> None:
    """Submit a sweep: of a box with --grid, --random or --optuna, or from a YAML FILE.

    A FILE has the keys of POST /v1/sweeps: job, space, algorithm, objective and more.

    Example: rdukit sweep submit --box logreg --input pef=art-1 --input dataset=art-2 --grid lr=0.1,0.01 --wait

    Example: rdukit sweep submit sweep.yaml --wait
    """
    body = read_file(file, options) if file is not None else make_body(options)
    with connect() as client:
        found = client.submit("/v1/sweeps", body)
        if wait:
            with watched([found["id"]], "sweep", "cancel", lambda: found, as_json=as_json):
                while found["state"] == "running":
                    time.sleep(LOOK_S)
                    found = client.get(f"/v1/sweeps/{found['id']}")
    if as_json:
        show.print_json(found)
    elif wait:
        _print_sweep(found)
    else:
        click.echo(found["id"])
    if wait and found["state"] != "succeeded":
        sys.exit(NOT_SUCCEEDED)


@sweep.command("list")
@show.page_options
@JSON_OPTION
@TOKEN_OPTION
@watchable
def list_(limit: int, cursor: str | None, as_json: bool) -> None:
    """List sweeps, newest first.

    Example: rdukit sweep list --limit 10

    Example: rdukit sweep list --watch
    """
    with connect() as client:
        page = client.get("/v1/sweeps", limit=limit, cursor=cursor)
    rows = [
        (one["id"], one["name"], one["algorithm"], one["state"], f"{sum(one['counts'].values())}/{one['max_trials']}",
         _best(one), show.ago(one["created_at"]))
        for one in page["sweeps"]
    ]  # fmt: skip
    show.print_page(page, as_json, ("ID", "NAME", "ALGORITHM", "STATE", "TRIALS", "BEST", "AGE"), rows)


@sweep.command("show")
@click.argument("sweep_id", metavar="SWEEP", shell_complete=SWEEPS)
@JSON_OPTION
@TOKEN_OPTION
@watchable
def show_(sweep_id: str, as_json: bool) -> bool:
    """Show a sweep with its trials; the best is marked.

    Example: rdukit sweep show sweep-7k2m9x41abcd

    Example: rdukit sweep show sweep-7k2m9x41abcd --watch
    """
    with connect() as client:
        found = client.get(f"/v1/sweeps/{sweep_id}")
    if as_json:
        show.print_json(found)
    else:
        _print_sweep(found)
    return found["ended_at"] is not None


@sweep.command()
@click.argument("sweep_id", metavar="SWEEP", shell_complete=SWEEPS)
@JSON_OPTION
@TOKEN_OPTION
def cancel(sweep_id: str, as_json: bool) -> None:
    """Cancel a sweep at once, and its open trials.

    Example: rdukit sweep cancel sweep-7k2m9x41abcd

    Example: rdukit sweep cancel sweep-7k2m9x41abcd --context lab
    """
    with connect() as client:
        found = client.post(f"/v1/sweeps/{sweep_id}/cancel")
    show.print_answer(found, as_json, f"{found['id']} is {found['state']}")


def make_body(options: Mapping[str, Any]) -> dict[str, object]:
    """Return the request body of a sweep from options (pure).

    Raises:
        InvalidArgument: no box, no space, several algorithms, or a malformed value.
    """
    if not options["box"]:
        raise InvalidArgument("--box is missing, or a FILE; list boxes with: rdukit box list")
    used = [name for name in ("grid", "random", "optuna") if options[name]]
    if len(used) != 1:
        raise InvalidArgument(
            f"{' and '.join(used) or 'no space'} was given; expected one of --grid, --random and --optuna"
        )
    if options["minimize"] and options["maximize"]:
        raise InvalidArgument("--minimize and --maximize cannot be combined; give one")
    algorithm = used[0]
    goal = "maximize" if options["maximize"] else "minimize"
    queue = {"tiles": options["tiles"], "priority": options["priority"], "run_limit_s": options["run_limit"],
             "labels": parse_name_values("--label", options["labels"]) or None}  # fmt: skip
    body: dict[str, object] = {
        "job": {
            **{key: value for key, value in queue.items() if value is not None},
            "box": options["box"],
            "verb": options["verb"],
            "parameters": {k: parse_value(v) for k, v in parse_name_values("--set", options["settings"]).items()},
            "inputs": parse_name_values("--input", options["inputs"]),
        },
        "algorithm": algorithm,
        "space": {k: read_space(k, v) for k, v in parse_name_values(f"--{algorithm}", options[algorithm]).items()},
        "objective": {
            "metric": options["maximize"] or options["minimize"] or "loss",
            "goal": goal,
            **({"split": options["split"]} if options.get("split") else {}),
        },
    }
    if options["stop_early"]:
        metric, _, goal = options["stop_early"].partition(":")
        rule = {
            "metric": metric,
            "goal": goal,
            "min_steps": options["stop_after"],
            "min_trials": options["stop_trials"],
        }
        body["early_stopping"] = {k: v for k, v in rule.items() if v not in (None, "")}
    named = {k: options[k] for k in ("name", "max_trials", "max_parallel", "seed")} | {
        "idempotency_key": options["key"]
    }
    return body | {k: v for k, v in named.items() if v is not None}


def read_space(name: str, text: str) -> dict[str, object]:
    """Read ``V,V`` or ``LOW:HIGH[:log][:int]`` (pure).

    Raises:
        InvalidArgument: a word after the numbers is neither log nor int.
    """
    low, _, rest = text.partition(":")
    high, *words = rest.split(":")
    ends = [parse_value(low), parse_value(high)] if rest and "," not in text else []
    if not ends or not all(isinstance(end, int | float) and not isinstance(end, bool) for end in ends):
        return {"values": [parse_value(word) for word in text.split(",")]}
    if strange := [word for word in words if word not in {"log", "int"}]:
        raise InvalidArgument(f"{name}={text} ends in {strange[0]!r}; expected LOW:HIGH, and after it :log and :int")
    return {"low": ends[0], "high": ends[1], "log": "log" in words, "integer": "int" in words}


def read_file(path: Path, options: Mapping[str, Any]) -> dict[str, object]:
    """Return a sweep file's content, with the name and key of the options.

    Raises:
        NotFound: there is no such file.
        InvalidArgument: the file is not a YAML mapping, or options also describe a sweep.
    """
    strange = [n for n, v in options.items() if v and n not in {"name", "key", "verb"}]
    if strange:
        raise InvalidArgument(f"--{strange[0].replace('_', '-')} cannot be combined with a FILE; set it in the file")
    body = read_request(path, "sweep", "job, space, objective and more")
    named = {"name": options["name"], "idempotency_key": options["key"]}
    return body | {k: v for k, v in named.items() if v is not None}


def _print_sweep(found: Mapping[str, Any]) -> None:
    objective, rule = found["objective"], found["early_stopping"]
    lines = [
        ("sweep", found["id"]),
        ("name", found["name"]),
        ("what", f"{found['job']['verb']} of box {found['job']['box']}, {found['job']['tiles']} tiles"),
        ("state", f"{found['state']}{' (' + found['reason'] + ')' if found['reason'] else ''}"),
        ("objective", f"{objective['goal']} {objective['metric']}{_SPLITS.get(objective.get('split'), '')}"),
        ("algorithm", f"{found['algorithm']}, {found['max_parallel']} at once, seed {found['seed']}"),
        ("stops early", f"by the median of {rule['metric']}, from step {rule['min_steps']} on" if rule else ""),
        ("best", _best(found)),
    ]
    show.print_fields(lines)
    click.echo()
    names = list(dict.fromkeys(name for trial in found["trials"] for name in trial["parameters"]))
    best = found["best"] and found["best"]["number"]
    rows = [
        ("*" if trial["number"] == best else "", trial["number"], trial["job"], trial["state"],
         *(_number(trial["parameters"].get(name)) for name in names), _number(trial["value"]), _what(trial))
        for trial in found["trials"]
    ]  # fmt: skip
    if rows:
        show.print_table(("", "TRIAL", "JOB", "STATE", *names, objective["metric"].upper(), "WHAT"), rows)


def _number(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _what(trial: Mapping[str, Any]) -> str:
    if trial["state"] in {"succeeded", "failed", "cancelled"}:
        return str(trial["why"] or ("" if trial["state"] == "succeeded" else trial["reason"]))
    return show.describe_progress(trial["progress"])


def _best(found: Mapping[str, Any]) -> str:
    best = found["best"]
    if best is None:
        return ""
    words = ", ".join(f"{name}={_number(value)}" for name, value in best["parameters"].items())
    return f"{found['objective']['metric']} {best['value']:.6g} with {words}"
