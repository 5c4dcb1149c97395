"""``rdukit tune``: the command."""

import json
import os
import shlex
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from rdukit.cli.tables import Table, print_tables
from rdukit.errors import InvalidArgument
from rdukit.files.atomic import write_reports
from rdukit.units import format_date, format_seconds
from rdukit_runtime.sambatune.config import TuneConfig, find_program, read_config

if TYPE_CHECKING:
    from rdukit_runtime.tune.space import Point, Value
    from rdukit_runtime.tune.study import Tried, TuneStudy

#: Largest measured share of the points, and least number of measurements.
_SHARE: Final = 0.25
_LEAST: Final = 6
_MOST_ROWS: Final = 20
#: Options that change the computation, and so the numbers.
_NUMERIC: Final = frozenset(
    {"precision", "batch-size", "graphamp-preset", "enable-mixed-precision-ops", "weight-dtype"}
)


@click.command()
@click.argument("program", type=click.Path(path_type=Path))
@click.argument("model_args", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--try", "tries", multiple=True, metavar="NAME=VALUE,…", help="Values of an option to try; may be repeated."
)
@click.option(
    "--objective", type=click.Choice(["measured", "projected"]), default="measured", show_default=True,
    help="Objective: samples/s of this machine, or of the emulated chip by the cost model.",
)  # fmt: skip
@click.option(
    "--measurements",
    type=click.IntRange(1),
    help="Largest number of measurements; default: a quarter of the points, at least 6.",
)
@click.option(
    "--rounds",
    type=click.IntRange(7),
    default=25,
    show_default=True,
    help="Rounds that compare the best point with the present options.",
)
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), default=Path("tuned.yaml"), show_default=True,
    help="File for the best options, for --yaml-config of the program.",
)  # fmt: skip
@click.option("--fresh", is_flag=True, help="Compile and measure everything again; reuse no earlier results.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document; progress goes to stderr.")
def tune(
    program: Path, model_args: tuple[str, ...], tries: tuple[str, ...], objective: str, measurements: int | None,
    rounds: int, output: Path, fresh: bool, as_json: bool,
) -> None:  # fmt: skip
    """Search compile options that speed up PROGRAM's steps, and write them to a file.

    PROGRAM is a SambaFlow program, or a sambatune configuration whose samba-sweep-parameters are the space. Put --
    before the program's own arguments. The cost model predicts all points; only a few of them are measured.

    Example: rdukit tune app.py --try optim-level=o0,o1,o3 --try batch-size=32,64 -- --in-features 512

    Example: rdukit tune linear_net.yaml --objective projected
    """
    from rdukit_runtime.engine.machine_limits import load_limits
    from rdukit_runtime.tune.space import list_points
    from rdukit_runtime.tune.store import ResultFile, measured_file, points_file
    from rdukit_runtime.tune.study import TuneStudy

    began = time.monotonic()
    config = _config_of(program, model_args)
    space = _space_of(config, tries)
    points = list_points(space)
    files = (points_file(config), measured_file())
    kept = [ResultFile(path) if fresh else ResultFile.read(path) for path in files]
    study = TuneStudy(config, load_limits(), kept[0], kept[1], lambda line: click.echo(line, err=True))
    study.compile_all([{}, *(point for point in points if point)])
    if objective == "measured":
        study.search(measurements or max(round(_SHARE * len(points)), _LEAST), {})
    best = study.best(objective)
    report = _finish(study, best, objective, rounds, output)
    report["elapsed_s"] = time.monotonic() - began
    if as_json:
        click.echo(json.dumps({**report, "points": _rows(study)}, indent=1))
        return
    print_tables([_table(study, objective)])
    click.echo(f"{study.compiles} compiles, {study.measurements} measurements, {study.reused} results reused, "
               f"{format_seconds(report['elapsed_s'])}")  # fmt: skip
    click.echo(report["outcome"])


def _config_of(program: Path, model_args: Sequence[str]) -> TuneConfig:
    """Return the program to tune.

    Raises:
        InvalidArgument: it is not a file, or a configuration with arguments of its own.
    """
    if program.suffix not in {".yaml", ".yml"}:
        app = str(find_program(str(program), (Path.cwd(),)))
        return TuneConfig(program.stem, app, app, tuple(model_args))
    if model_args:
        raise InvalidArgument(
            f"{shlex.join(model_args)}: arguments of {program} are in the file; write them under 'model-args'"
        )
    try:
        text = program.read_text()
    except (OSError, UnicodeDecodeError) as cause:
        raise InvalidArgument(f"{program} cannot be read: {cause}; expected a YAML file") from cause
    config = read_config(program.name, text, os.environ)
    if config.existing:
        raise InvalidArgument(
            "'existing-compile-output' cannot be tuned, because tune compiles its points; leave it out"
        )
    return replace(config, app=str(find_program(config.app, (Path.cwd(), program.parent.absolute()))))


def _space_of(config: TuneConfig, tries: Sequence[str]) -> "dict[str, tuple[Value, ...]]":
    from rdukit_runtime.tune.space import default_space, option_name, read_try

    space: dict[str, tuple[Value, ...]] = {option_name(name): values for name, values in config.sweep.items()}
    for text in tries:
        name, values = read_try(text)
        space[name] = values
    return space or default_space(config.option("-b", "--batch-size"))


def _finish(study: "TuneStudy", best: "Tried", objective: str, rounds: int, output: Path) -> dict[str, Any]:
    """Compare the best point with the unchanged program, and write the point if it is faster."""
    from rdukit_runtime.tune.space import point_key

    now = study.tried[point_key({})]
    report: dict[str, Any] = {"best": dict(best.point), "objective": objective, "written": ""}
    is_same, is_ahead = now.compiled.digest == best.compiled.digest, best.projected > now.projected
    if now is best or (not now.compiled.error and (is_same if objective == "measured" else not is_ahead)):
        report["outcome"] = "no other point is faster; keep the present options"
        return report
    words = ""
    if now.compiled.error:
        words = f"the program as it is does not compile: {now.compiled.error}"
    elif objective == "projected":
        words = f"{best.projected / now.projected:.3f} times as fast on the emulated chip, projected by the cost model"
    else:
        found = study.compare(now.point, best.point, rounds)
        scale = best.compiled.batch / now.compiled.batch
        low, high = (scale / found[key] if found[key] else 0.0 for key in ("high", "low"))
        report["gain"] = {"value": scale / found["ratio"], "low": low, "high": high, "rounds": rounds}
        words = f"{scale / found['ratio']:.3f} times as fast ({low:.3f} to {high:.3f}, {rounds} rounds in turns)"
        if low <= 1.0:
            report["outcome"] = f"{words}: no certain difference; keep the present options"
            return report
    _write(study, best, words, output, report)
    return report


def _write(study: "TuneStudy", best: "Tried", words: str, output: Path, report: dict[str, Any]) -> None:
    from rdukit_runtime.tune.space import outcome_text

    config = study.config
    comments = [
        f"Written by rdukit tune, {format_date(time.time())} UTC.",
        words,
        f"Use: python {shlex.join([config.app, *config.compile_args, *config.model_args])} --yaml-config {output}",
        "Give the same --yaml-config to run.",
    ]
    changing = sorted(name for name in best.point if name in _NUMERIC)
    if changing:
        comments.append(f"Changes results, not only speed: {', '.join(changing)}. Compare losses before you keep it.")
    text = outcome_text(best.point, comments)
    if not study.accepts(text, best):
        options = shlex.join(_words(best.point))
        report["outcome"] = f"the program takes no --yaml-config; give it these options: {options}   # {words}"
        return
    try:
        write_reports(output.absolute().parent, {output.name: text.encode()})
    except OSError as cause:
        raise InvalidArgument(f"{output} cannot be written: {cause.strerror}; choose another with -o") from cause
    report |= {"written": str(output), "outcome": f"{output} created: {words}"}


def _words(point: "Point") -> list[str]:
    from rdukit_runtime.tune.space import option_words

    return option_words(point)


def _rows(study: "TuneStudy") -> list[dict[str, Any]]:
    return [
        {
            "options": dict(each.point), "error": each.compiled.error, "digest": each.compiled.digest,
            "batch": each.compiled.batch, "measured_samples_s": each.measured, "expected_samples_s": each.expected,
            "predicted_samples_s": each.predicted, "projected_samples_s": each.projected,
        }
        for each in study.tried.values()
    ]  # fmt: skip


def _table(study: "TuneStudy", objective: str) -> Table:
    key = "projected" if objective == "projected" else "measured"
    ordered = sorted(study.compiled, key=lambda each: -(getattr(each, key) or 0.0))[:_MOST_ROWS]
    columns = ("options", "measured", "expected", "projected")
    rows = tuple(
        (
            shlex.join(_words(each.point)) or "as it is",
            *(_figure(v) for v in (each.measured, each.expected, each.projected)),
        )
        for each in ordered
    )
    title = (
        f"Samples/s, the best {len(rows)} of {len(study.compiled)} points that compile; expected by the cost model and "
        "the measurements, projected for the emulated chip"
    )
    return Table(title, columns, rows, frozenset(columns[1:]))


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"
