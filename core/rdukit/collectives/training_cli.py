"""``rdukit simulate training``: project a data-parallel training on more machines. Attached by entry point."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from math import log2
from pathlib import Path
from typing import Any, Final

import click

from rdukit.cli.commands import JSON_OPTION, Duration
from rdukit.cli.tables import Table, print_tables
from rdukit.collectives.chakra import write_chakra
from rdukit.collectives.cli import machine_options, machine_to_dicts, write_trace
from rdukit.collectives.projection import ScalePoint, TrainingScenario, link_traffic, project_training, rank_tiles
from rdukit.collectives.topology import MAX_RANKS, Machine, break_links, make_machine
from rdukit.errors import InvalidArgument
from rdukit.files.atomic import write_atomic
from rdukit.files.svg import svg_document, svg_text
from rdukit.hardware import find_chip
from rdukit.pef.file import read_pef
from rdukit.pef.model import Pef
from rdukit.units import format_bytes, format_seconds

WIDTH: Final = 720
HEIGHT: Final = 320
LEFT: Final = 60
TOP: Final = 60
BOTTOM: Final = 40
MODEL: Final = "projected: the cost model times sections, assumed links time the reduce, nothing overlaps"


class RankCounts(click.ParamType[tuple[int, ...]]):
    """Numbers of ranks, such as ``1,8,64``, in ascending order."""

    name = "N,N,…"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        words = value.split(",")
        counts = [int(word) for word in words if word.isascii() and word.isdigit() and len(word) < 7]
        if len(counts) != len(words) or sorted(set(counts)) != counts or not 1 <= counts[0] <= counts[-1] <= MAX_RANKS:
            self.fail(
                f"{value!r} is not valid; expected increasing numbers of ranks from 1, such as 1,8,64", param, ctx
            )
        return tuple(counts)


@click.command()
@click.argument("file", metavar="PEF", type=click.Path(path_type=Path))
@machine_options
@click.option("--ranks", type=RankCounts(), required=True, help="Numbers of ranks to compare, such as 1,8,64.")
@click.option("--steps", type=click.IntRange(1), default=1000, show_default=True, help="Steps of the training.")
@click.option(
    "--straggler",
    type=click.FloatRange(1, 1000),
    default=1.0,
    help="Factor by which one rank is slower than the others.",
)
@click.option("--mtbf", type=Duration(), default=None, help="Mean time between failures of one rank, such as 90d.")
@click.option(
    "--checkpoint-every", type=Duration(), default=None, help="Training time between checkpoints, such as 15m."
)
@click.option("--checkpoint-time", type=Duration(), default=0.0, help="Time to write a checkpoint.  [default: 0]")
@click.option(
    "--restart-time", type=Duration(), default=0.0, help="Time from a failure until training continues.  [default: 0]"
)
@click.option("--price", type=click.FloatRange(0, 1e9, min_open=True), default=None, help="Price of an RDU hour.")
@click.option(
    "--plot",
    type=click.Path(path_type=Path, dir_okay=False),
    help="SVG file for a plot of efficiency by number of ranks.",
)
@click.option(
    "--trace-goal", type=click.Path(path_type=Path, dir_okay=False), help="Write the largest reduce as a GOAL schedule."
)
@click.option(
    "--trace-chakra", type=click.Path(path_type=Path, file_okay=False),
    help="Folder for Chakra traces of a step with the largest number of ranks, one file per rank.",
)  # fmt: skip
@JSON_OPTION
def training(
    file: Path, topology: str, broken: Sequence[str], ranks: tuple[int, ...], steps: int, straggler: float,
    mtbf: float | None, checkpoint_every: float | None, checkpoint_time: float, restart_time: float,
    price: float | None, plot: Path | None, trace_goal: Path | None, trace_chakra: Path | None,
    as_json: bool,
) -> None:  # fmt: skip
    """Project a data-parallel training of PEF on more RDUs, nodes and racks.

    All figures are projected or assumed, not measured: sections by the cost model, the reduce by assumed links. The
    batch of a rank stays the same, and the reduce does not overlap with sections.

    Example: rdukit simulate training out/logreg/logreg.pef --topology 128xSN30-8 --ranks 1,8,64,1024

    Example: rdukit simulate training gpt.pef --topology 8xSN30-8 --ranks 8,64 --plot scaling.svg
    """
    if plot is not None and plot.suffix != ".svg":
        raise InvalidArgument(f"{plot.name!r} is not an SVG file; expected a name that ends in .svg")
    for name, value in (("--mtbf", mtbf), ("--checkpoint-every", checkpoint_every)):
        if value == 0:
            raise InvalidArgument(f"{name} is 0; expected a time above 0")
    if checkpoint_every is None and checkpoint_time:
        raise InvalidArgument("--checkpoint-time has no effect without --checkpoint-every; give both")
    if mtbf is None and restart_time:
        raise InvalidArgument("--restart-time has no effect without --mtbf; give both")
    pef = read_pef(file).pef
    machine = break_links(make_machine(topology, rank_tiles(find_chip(pef.arch), pef.num_tiles)), broken)
    scenario = TrainingScenario(
        steps, straggler, mtbf or 0.0, checkpoint_every or 0.0, checkpoint_time, restart_time, price or 0.0
    )
    points = project_training(pef, machine, ranks, scenario)
    if trace_goal is not None:
        if points[-1].reduce is None:
            raise InvalidArgument(
                "--trace-goal needs a reduce, and a single rank has none; expected --ranks of 2 or more"
            )
        write_trace(trace_goal, points[-1].reduce.plan)
    if trace_chakra is not None:
        files = write_chakra(trace_chakra, file.stem, pef, ranks[-1], straggler)
        click.echo(f"wrote {len(files)} traces, {trace_chakra / file.stem}.RANK.et", err=True)
    if as_json:
        click.echo(json.dumps(training_to_dict(pef, machine, scenario, points), indent=2))
    else:
        print_tables(training_tables(pef, machine, points))
    if plot is not None:
        write_atomic(plot, draw_scaling(pef.name, machine.name, points).encode())
        click.echo(f"wrote {plot}", err=True)


def training_to_dict(
    pef: Pef, machine: Machine, scenario: TrainingScenario, points: Sequence[ScalePoint]
) -> dict[str, Any]:
    """Return plain values for JSON; seconds and bytes, unrounded."""
    return {
        "pef": pef.name,
        "arch": pef.arch,
        "topology": machine.name,
        "model": MODEL,
        "figures": machine.figures,
        "links": machine_to_dicts(machine),
        "scenario": asdict(scenario),
        "points": [
            {
                "ranks": p.ranks,
                "rdus": p.rdus,
                "projected": {
                    "sections_s": p.sections_s,
                    "reduce_s": p.reduce.seconds if p.reduce else 0.0,
                    "algorithm": p.reduce.algorithm if p.reduce else None,
                    "why": p.reduce.plan.why if p.reduce else None,
                    "notes": list(p.reduce.plan.notes) if p.reduce else [],
                    "step_s": p.step_s,
                    "efficiency": p.efficiency,
                    "speedup": p.speedup,
                    "slowdown_by_failures": p.slowdown,
                    "run_s": p.run_s,
                    "rank_memory_bytes": p.rank_bytes,
                    "busiest_link_bytes": dict(link_traffic(p)),
                    "cost": p.cost,
                },
            }
            for p in points
        ],
    }


def training_tables(pef: Pef, machine: Machine, points: Sequence[ScalePoint]) -> list[Table]:
    """Return the projection as tables: time and efficiency, then run and links."""
    times = tuple(
        (
            str(p.ranks), f"{p.rdus:g}", format_seconds(p.sections_s), p.reduce.algorithm if p.reduce else "-",
            format_seconds(p.reduce.seconds) if p.reduce else "-", format_seconds(p.step_s),
            f"{100 * p.efficiency:.1f} %", f"{p.speedup:.4g}",
        )
        for p in points
    )  # fmt: skip
    runs = tuple(
        (
            str(p.ranks), f"{100 * (p.slowdown - 1):.2f} %", format_seconds(p.run_s),
            "-" if p.cost is None else f"{p.cost:.4g}", format_bytes(p.rank_bytes),
            ", ".join(f"{level} {format_bytes(round(size))}" for level, size in link_traffic(p).items()) or "-",
        )
        for p in points
    )  # fmt: skip
    notes = tuple(("note", note) for note in (points[-1].reduce.plan.notes if points[-1].reduce else ()))
    head = (("model", MODEL), ("links", machine.figures), *notes)
    columns = ("ranks", "RDUs", "sections", "algorithm", "reduce", "step", "efficiency", "speed-up")
    more = ("ranks", "lost time", "run", "cost", "memory a rank", "busiest links per step, one direction")
    return [
        Table(f"{pef.name} on {machine.name}", ("", ""), head),
        Table("A step (projected)", columns, times, frozenset(columns) - {"algorithm"}),
        Table("The run (projected)", more, runs, frozenset(more[:-1])),
    ]


def draw_scaling(pef: str, machine: str, points: Sequence[ScalePoint]) -> str:
    """Draw efficiency over ranks (by powers of two) as an SVG document."""
    low, high = log2(points[0].ranks), log2(points[-1].ranks)

    def place(point: ScalePoint) -> tuple[float, float]:
        part = (log2(point.ranks) - low) / (high - low) if high > low else 0.5
        return LEFT + part * (WIDTH - 2 * LEFT), TOP + (1 - point.efficiency) * (HEIGHT - TOP - BOTTOM)

    parts = [
        svg_text(LEFT, 24, "title", f"{pef} on {machine}"),
        svg_text(LEFT, 44, "dim", f"efficiency over ranks; {MODEL}"),
    ]
    for percent in (0, 25, 50, 75, 100):
        y = TOP + (1 - percent / 100) * (HEIGHT - TOP - BOTTOM)
        parts.append(f'<line x1="{LEFT}" y1="{y:.6g}" x2="{WIDTH - LEFT}" y2="{y:.6g}" class="grid"/>')
        parts.append(svg_text(LEFT - 8, y + 4, "dim right", f"{percent} %"))
    places = [place(point) for point in points]
    parts.append(f'<polyline class="line" points="{" ".join(f"{x:.6g},{y:.6g}" for x, y in places)}"/>')
    for point, (x, y) in zip(points, places, strict=True):
        parts.append(f'<circle class="dot" cx="{x:.6g}" cy="{y:.6g}" r="4"/>')
        parts.append(svg_text(x, HEIGHT - BOTTOM + 20, "dim middle", str(point.ranks)))
    light = "  .line { fill: none; stroke: #2f6fb5; stroke-width: 2; } .dot { fill: #2f6fb5; }\n"
    dark = "    .line { stroke: #6cb0ff; } .dot { fill: #6cb0ff; }\n"
    return svg_document(parts, WIDTH, HEIGHT, f"Projected efficiency of {pef} over ranks", light, dark)
