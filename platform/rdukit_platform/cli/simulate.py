"""``rdukit simulate``: what the scheduler would do with other jobs, or on other machines."""

import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click

from rdukit.cli import tables
from rdukit.cli.commands import ExtensibleGroup
from rdukit.errors import InvalidArgument
from rdukit.files.atomic import write_atomic
from rdukit.settings import resolve
from rdukit_platform.cli import show
from rdukit_platform.cli.simulated_picture import draw_run
from rdukit_platform.scheduler.figures import QueueFigures, sum_up
from rdukit_platform.scheduler.simulate import SimulatedSystem
from rdukit_platform.scheduler.simulate import simulate as run_trace
from rdukit_platform.scheduler.traces import TraceJob, draw_trace, read_trace
from rdukit_platform.settings import SCHEDULER_HALF_LIFE_S, SCHEDULER_STARVE_S, SCHEDULER_TENANT_JOBS

DEFAULT_JOBS = 1000
DEFAULT_TENANTS = 10


@click.group(cls=ExtensibleGroup)
def simulate() -> None:
    """Simulate the scheduler with other jobs, or on other machines.

    Example: rdukit simulate queue --jobs 2000 --tenants 20 --nodes 4
    """


@simulate.command()
@click.option("--swf", type=click.Path(path_type=Path), default=None, help="A trace in the Standard Workload Format.")
@click.option("--jobs", type=click.IntRange(1, 1_000_000), default=None, help="Jobs to draw instead.  [default: 1000]")
@click.option("--tenants", type=click.IntRange(1, 10_000), default=None, help="Tenants that send them.  [default: 10]")
@click.option("--seed", type=int, default=None, help="Of what is drawn; the same gives the same.  [default: 0]")
@click.option(
    "--load",
    type=click.FloatRange(0.01, 100),
    default=None,
    help="What they ask for, over what the nodes can do.  [default: 0.9]",
)
@click.option("--nodes", type=click.IntRange(1, 10_000), default=1, show_default=True, help="Nodes; a job is on one.")
@click.option("--tiles", type=click.IntRange(1, 10_000), default=64, show_default=True, help="Tiles of a node.")
@click.option("--slots", type=click.IntRange(0), default=0, help="Worker slots together; 0: as many as tiles.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    default=None,
    help="Draw tiles in use and jobs that wait over time to this SVG file.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of a table.")
def queue(
    swf: Path | None, jobs: int | None, tenants: int | None, seed: int | None, load: float | None, nodes: int,
    tiles: int, slots: int, output: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Simulate the queue of a platform with a trace of jobs, and tell how long they wait.

    Jobs come from a file, or are drawn. It is the scheduler's own decision that is made whenever a job comes or ends,
    by the settings scheduler.starve_s, scheduler.half_life_s and scheduler.tenant_jobs; no platform need run.

    Example: rdukit simulate queue --swf trace.swf --nodes 8 -o queue.svg
    """
    if output is not None and output.suffix != ".svg":
        raise InvalidArgument(f"a picture is SVG and its name ends in .svg, not {output.name!r}")
    total = nodes * tiles
    trace = _choose_trace(swf, (jobs, tenants, seed, load), tiles, nodes)
    system = SimulatedSystem(
        tiles, slots, resolve(SCHEDULER_TENANT_JOBS), resolve(SCHEDULER_STARVE_S), resolve(SCHEDULER_HALF_LIFE_S), nodes
    )
    run = run_trace(trace, system, time.perf_counter)
    figures = sum_up(run, total)
    if as_json:
        show.print_json({"nodes": nodes, "tiles": total, **asdict(figures)})
    else:
        tables.print_tables(
            [tables.Table("", ("FIGURE", "VALUE"), tuple(_describe(figures, total)), frozenset({"VALUE"}))]
        )
    if output is not None:
        write_atomic(output, draw_run(run, total).encode())
        click.echo(f"wrote {output}", err=True)


def _choose_trace(
    swf: Path | None, drawn: tuple[int | None, int | None, int | None, float | None], tiles: int, nodes: int
) -> Sequence[TraceJob]:
    jobs, tenants, seed, load = drawn
    if swf is None:
        return draw_trace(jobs or DEFAULT_JOBS, tenants or DEFAULT_TENANTS, tiles, seed or 0, load or 0.9, nodes)
    if any(value is not None for value in drawn):
        raise InvalidArgument("--swf does not go with --jobs, --tenants, --seed and --load, which draw a trace")
    return read_trace(swf)


def _describe(figures: QueueFigures, tiles: int) -> list[tuple[str, str]]:
    return [
        ("jobs", f"{figures.jobs}"),
        ("refused, larger than a node", f"{figures.refused}"),
        ("tenants", f"{figures.tenants}"),
        ("tiles", f"{tiles}"),
        ("span", f"{figures.span_s:.0f} s"),
        ("utilisation", f"{100 * figures.utilisation:.1f} %"),
        ("waiting, mean", f"{figures.wait_mean_s:.1f} s"),
        ("waiting, 95th percentile", f"{figures.wait_p95_s:.1f} s"),
        ("slowdown, mean", f"{figures.slowdown_mean:.2f}"),
        ("fairness between tenants", f"{figures.fairness:.3f}"),
        ("decisions", f"{figures.decisions}"),
        ("decision, mean", f"{1000 * figures.decide_mean_s:.2f} ms"),
        ("decision, 95th percentile", f"{1000 * figures.decide_p95_s:.2f} ms"),
    ]
