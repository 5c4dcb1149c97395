"""``rdukit pef compare``: two PEFs in turns, and whether one is faster. Attached to ``rdukit pef`` by entry point."""

import json
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from rdukit.cli.tables import Table, print_tables
from rdukit.errors import InvalidArgument
from rdukit.units import format_seconds

if TYPE_CHECKING:
    from rdukit.pef.file import LoadedPef
    from rdukit_runtime.application import Application
    from rdukit_runtime.profile.comparison import PefComparison, Ratio, Round
    from rdukit_runtime.profile.run import Scheduled

_SLOWER: Final = 1
_PATH: Final = click.Path(path_type=Path)


def _share(_context: click.Context, _parameter: click.Parameter, value: str | None) -> float | None:
    if value is None:
        return None
    try:
        share = float(value.removesuffix("%")) / (100.0 if value.endswith("%") else 1.0)
    except ValueError:
        share = -1.0
    if not 0.0 <= share < float("inf"):
        raise click.BadParameter(f"{value!r} is not a percentage; expected a value such as 3%")
    return share


@click.command()
@click.argument("before", type=_PATH)
@click.argument("after", type=_PATH)
@click.option("--rounds", type=click.IntRange(min=1), default=25, show_default=True, help="Pairs of measurements.")
@click.option(
    "--runs",
    type=click.IntRange(min=1),
    default=15,
    show_default=True,
    help="Steps per round, of which the fastest counts.",
)
@click.option(
    "--fail-if-slower",
    "most",
    callback=_share,
    help="Exit with status 1 if AFTER is slower by more than this, such as 3%.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.pass_context
def compare(
    context: click.Context, /, before: Path, after: Path, rounds: int, runs: int, most: float | None, as_json: bool
) -> None:  # fmt: skip
    """Run two PEFs in turns with generated values, and report whether AFTER is faster with confidence.

    Example: rdukit pef compare base.pef new.pef --fail-if-slower 3%

    Example: rdukit pef compare base.pef new.pef --rounds 9 --json
    """
    from rdukit.pef.diff import diff_pefs, diff_tables
    from rdukit.pef.file import read_pef
    from rdukit_runtime.profile.comparison import CONFIDENCE, comparison_to_dict, least_rounds

    if most is not None and rounds < (least := least_rounds(CONFIDENCE)):
        raise InvalidArgument(f"--rounds {rounds} is too few to decide; expected {least} or more with --fail-if-slower")
    found = compare_files(before, after, rounds, runs)
    changes = diff_pefs(read_pef(before), read_pef(after))
    fails = most is not None and found.step.is_slower_by(most)
    if as_json:
        click.echo(json.dumps({**comparison_to_dict(found), "differences": len(changes), "fails": fails}, indent=1))
    else:
        print_tables([*diff_tables([c for c in changes if c.area == "options"]), *comparison_tables(found)])
    if fails:
        words = f"slower by {100 * (found.step.value - 1):.1f} %, at least {100 * (found.step.low - 1):.1f} %"
        click.echo(f"{after} is {words}; {100 * (most or 0.0):g} % are allowed", err=True)
        context.exit(_SLOWER)


def compare_files(before: Path, after: Path, rounds: int, runs: int) -> "PefComparison":
    """Measure two PEFs in turns: A B, then B A, and so on.

    Each round reloads both, in alternating order. The addresses of tensors change a section's time by some percent
    until the next load; measured in one load, two equal PEFs differ.

    Raises:
        PefError: a file cannot be used. NoResources: the node has no room for both.
    """
    from rdukit.pef.diff import pair_sections
    from rdukit.pef.file import read_pef
    from rdukit_runtime.profile.comparison import compare_rounds

    files = [read_pef(path) for path in (before, after)]
    taken: tuple[list[Round], list[Round]] = ([], [])
    for number in range(rounds):
        with ExitStack() as opened:
            loads = (0, 1) if number // 2 % 2 == 0 else (1, 0)
            sides = {side: _load_side(opened, files[side], side) for side in loads}
            for side in (0, 1) if number % 2 == 0 else (1, 0):
                taken[side].append(measure_round(*sides[side], runs))
    pairs = [
        ((old.id, new.id), old.name, old.type.value)
        for old, new in pair_sections(files[0].pef.sections, files[1].pef.sections)
        if old is not None and new is not None
    ]
    return compare_rounds(taken[0], taken[1], pairs)


def _load_side(opened: ExitStack, file: "LoadedPef", side: int) -> "tuple[Application, list[Scheduled]]":
    """Load a PEF with made-up values until ``opened`` closes, and run it once."""
    from rdukit_runtime.application import open_application
    from rdukit_runtime.profile.run import ProfileRequest, fill_program, run_once, schedule_of

    app = opened.enter_context(open_application(file.path, f"compare-{'ab'[side]}"))
    fill_program(app.program, file.kernels)
    schedule = schedule_of(app, ProfileRequest(file.path))
    run_once(app, schedule)
    return app, schedule


def measure_round(app: "Application", schedule: "list[Scheduled]", runs: int) -> "Round":
    """Return the best seconds of a step, and of each section, over ``runs`` runs."""
    from rdukit_runtime.profile.run import run_once

    best_s, sections = float("inf"), dict[int, float]()
    for _ in range(runs):
        taken: list[tuple[int, float]] = []
        app.program.section_seconds = taken
        began = time.perf_counter()
        try:
            run_once(app, schedule)
        finally:
            app.program.section_seconds = None
        best_s = min(best_s, time.perf_counter() - began)
        for number, seconds in taken:
            sections[number] = min(seconds, sections.get(number, seconds))
    return best_s, sections


def comparison_tables(found: "PefComparison") -> list[Table]:
    """Return the verdict on the step, and the sections that changed for certain."""
    columns = ("", "before", "after", "ratio", "interval", "verdict")
    changed = [s for s in found.sections if s.ratio.low > 1.0 or s.ratio.high < 1.0]
    listed = sorted(changed, key=lambda s: -abs(s.ratio.after_s - s.ratio.before_s))
    title = f"Host time of a step, measured in {found.rounds} rounds; confidence of intervals {found.confidence:.0%}"
    right = frozenset(columns[1:5])
    tables = [Table(title, columns, (("step", *_cells(found.step)),), right)]
    if listed:
        rows = tuple((f"{s.name} ({s.type})", *_cells(s.ratio)) for s in listed)
        tables.append(Table("Sections that differ", columns, rows, right))
    return tables


def _cells(ratio: "Ratio") -> tuple[str, ...]:
    return (
        format_seconds(ratio.before_s), format_seconds(ratio.after_s), f"{ratio.value:.3f}",
        f"{ratio.low:.3f} to {ratio.high:.3f}", ratio.verdict.value,
    )  # fmt: skip
