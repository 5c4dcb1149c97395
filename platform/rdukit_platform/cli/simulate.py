"""``rdukit simulate``: simulate the scheduler with other jobs or machines.

Other parts add commands through the entry-point group ``rdukit.simulate.commands``.
"""

import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click

from rdukit.cli import tables
from rdukit.cli.commands import Choice, Duration, ExtensibleGroup, parse_name_values
from rdukit.errors import InvalidArgument
from rdukit.files.atomic import write_atomic
from rdukit.hardware import NODES, NodeSpec
from rdukit.settings import resolve
from rdukit_platform.cli import show
from rdukit_platform.cli.simulated_picture import draw_run
from rdukit_platform.nodes.topology import NodeLayout
from rdukit_platform.scheduler.figures import QueueFigures, sum_up
from rdukit_platform.scheduler.model import PreemptionRule, PriorityScope, TenantShare
from rdukit_platform.scheduler.settings import (
    SCHEDULER_HALF_LIFE_S,
    SCHEDULER_PREEMPT_MIN_RUN_S,
    SCHEDULER_PREEMPT_MOST,
    SCHEDULER_PREEMPT_PRIORITY,
    SCHEDULER_PRIORITY_SCOPE,
    SCHEDULER_STARVE_S,
)
from rdukit_platform.scheduler.simulate import QueuePolicy, SimulatedSystem
from rdukit_platform.scheduler.simulate import simulate as run_trace
from rdukit_platform.scheduler.traces import (
    TraceJob,
    TraceParts,
    draw_outages,
    draw_trace,
    parse_maintenance,
    read_trace,
)
from rdukit_platform.settings import SCHEDULER_TENANT_JOBS

DEFAULT_JOBS = 1000
DEFAULT_TENANTS = 10
DEFAULT_PLATFORM = "SN30-8"


@click.group(cls=ExtensibleGroup, extended_by="rdukit.simulate.commands")
def simulate() -> None:
    """Simulate the scheduler with other jobs, or project a training onto more machines.

    Example: rdukit simulate queue --jobs 2000 --tenants 20 --nodes 4

    Example: rdukit simulate queue --jobs 3000 --tenants 20 --nodes 4 --load 1.1
    """


@simulate.command()
@click.option(
    "--swf", type=click.Path(path_type=Path), default=None, help="File with a trace in the Standard Workload Format."
)
@click.option(
    "--jobs",
    type=click.IntRange(1, 1_000_000),
    default=None,
    help="Number of jobs to draw without a trace.  [default: 1000]",
)
@click.option("--tenants", type=click.IntRange(1, 10_000), default=None, help="Number of tenants.  [default: 10]")
@click.option("--seed", type=int, default=None, help="Seed of drawn jobs; equal seeds give equal jobs. [default: 0]")
@click.option(
    "--load",
    type=click.FloatRange(0.01, 100),
    default=None,
    help="Demand of the jobs divided by the capacity of the nodes. [default: 0.9]",
)
@click.option("--nodes", type=click.IntRange(1, 10_000), default=1, show_default=True, help="Nodes.")
@click.option(
    "--platform",
    type=Choice(tuple(NODES)),
    default=None,
    help="Platform of each node, which determines its tiles, RDUs, XRDUs and concurrent applications.  [default: "
    f"{DEFAULT_PLATFORM}]",
)
@click.option(
    "--tiles",
    type=click.IntRange(1, 10_000),
    default=None,
    help="Tiles of a node, instead of a platform; all tiles are equivalent.",
)
@click.option(
    "--applications",
    type=click.IntRange(1),
    default=None,
    help="Largest number of concurrent jobs with tiles on a node.",
)
@click.option(
    "--urgent",
    type=click.FloatRange(0, 1),
    default=None,
    help="Fraction of drawn jobs with the highest priority; the others are then preemptible.  [default: 0]",
)
@click.option(
    "--gangs",
    type=click.FloatRange(0, 1),
    default=None,
    help="Fraction of drawn jobs with 2, 4 or 8 members.  [default: 0]",
)
@click.option(
    "--wide",
    type=click.FloatRange(0, 1),
    default=None,
    help="Fraction of gangs that need several nodes; members may then be spread.  [default: 0]",
)
@click.option(
    "--zones",
    type=click.IntRange(0, 1000),
    default=0,
    help="Number of zones; nodes get the labels zone=0, … cyclically.…",
)
@click.option(
    "--racks",
    type=click.IntRange(0, 1000),
    default=0,
    help="Number of racks; consecutive nodes get the labels rack=0, …; a gang stays in one rack if that needs no "
    "more nodes.",
)
@click.option(
    "--constrained",
    type=click.FloatRange(0, 1),
    default=None,
    help="Fraction of drawn jobs that require nodes of one zone.  [default: 0]",
)
@click.option(
    "--quota",
    "quotas",
    multiple=True,
    metavar="TENANT=TILES",
    help="Quota of a tenant in tiles, such as tenant-1=32; repeat for more.",
)
@click.option("--lose-every", type=Duration(), default=None, help="Mean time after which a node is lost, such as 30d.")
@click.option("--lost-for", type=Duration(), default=3600.0, help="Mean time until a lost node is back.  [default: 1h]")
@click.option("--break-every", type=Duration(), default=None, help="Mean time after which an RDU breaks, such as 90d.")
@click.option(
    "--broken-for", type=Duration(), default=14400.0, help="Mean time until an RDU is repaired.  [default: 4h]"
)
@click.option(
    "--maintenance",
    "maintained",
    multiple=True,
    metavar="NODES@START+LENGTH",
    help="Planned maintenance, such as 0-3@12h+2h; repeat for more.",
)
@click.option(
    "--policy",
    type=Choice(tuple(map(str, QueuePolicy))),
    default=str(QueuePolicy.FAIR),
    show_default=True,
    help="Order of the queue: the scheduler's, or only by age for comparison (EASY backfill).",
)
@click.option("--slots", type=click.IntRange(0), default=0, help="Worker slots of all nodes; 0: one per tile.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    default=None,
    help="SVG file for a picture of tiles in use, also per RDU, and of waiting jobs.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of a table.")
def queue(
    swf: Path | None, jobs: int | None, tenants: int | None, seed: int | None, load: float | None, nodes: int,
    platform: str | None, tiles: int | None, applications: int | None, urgent: float | None, gangs: float | None,
    wide: float | None, zones: int, racks: int, constrained: float | None, quotas: Sequence[str],
    lose_every: float | None, lost_for: float, break_every: float | None, broken_for: float,
    maintained: Sequence[str], policy: str, slots: int, output: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Simulate the queue of a platform with a trace of jobs, and print their waiting times.

    Jobs come from a file, or are drawn. The platform's scheduler decides whenever a job arrives or ends, or a node or
    RDU is lost or back. Its settings are scheduler.starve_s, scheduler.half_life_s, scheduler.priority_scope,
    scheduler.tenant_jobs and scheduler.preempt_priority, _min_run_s and _most; no platform need run. With --policy easy
    tenants, quotas and priorities make no difference.

    Example: rdukit simulate queue --swf trace.swf --nodes 8 -o queue.svg

    Example: rdukit simulate queue --jobs 3000 --tenants 20 --nodes 4 --load 1.1
    """
    if output is not None and output.suffix != ".svg":
        raise InvalidArgument(f"the picture's name is {output.name!r}; expected a name that ends in .svg")
    if output is not None and not output.parent.is_dir():
        raise InvalidArgument(f"the folder {str(output.parent)!r} for the picture does not exist; create it first")
    if platform and tiles:
        raise InvalidArgument(
            "--platform and --tiles cannot be combined, because a platform determines its tiles; give one of them"
        )
    spec = None if tiles else NODES[platform or DEFAULT_PLATFORM]
    tiles = tiles or NODES[platform or DEFAULT_PLATFORM].tiles
    if break_every and spec is None:
        raise InvalidArgument("--break-every breaks RDUs, but nodes by --tiles have none; give --platform")
    if policy == QueuePolicy.EASY and quotas:
        raise InvalidArgument(
            "--policy easy and --quota cannot be combined, because the order by age ignores quotas; give one of them"
        )
    total = nodes * tiles
    if constrained and not zones:
        raise InvalidArgument("--constrained needs zones; add, for example, --zones 4")
    parts = (urgent, gangs, wide, constrained)
    trace = _choose_trace(swf, (jobs, tenants, seed, load), parts, tiles, nodes, zones)
    system = SimulatedSystem(
        tiles, slots, resolve(SCHEDULER_TENANT_JOBS), resolve(SCHEDULER_STARVE_S), resolve(SCHEDULER_HALF_LIFE_S),
        nodes, _read_quotas(quotas, trace),
        PreemptionRule(
            resolve(SCHEDULER_PREEMPT_PRIORITY), resolve(SCHEDULER_PREEMPT_MIN_RUN_S), resolve(SCHEDULER_PREEMPT_MOST)
        ),
        tuple(each for text in maintained for each in parse_maintenance(text, nodes)), zones, racks,
        is_linked=bool(wide),
        layout=NodeLayout(0) if spec is None else NodeLayout(spec.chip.tiles, spec.rdus_per_xrdu),
        applications=applications or (0 if spec is None else spec.max_applications),
        priority_scope=PriorityScope(resolve(SCHEDULER_PRIORITY_SCOPE)), policy=QueuePolicy(policy),
    )  # fmt: skip
    span_s = max((job.at + job.runs_s for job in trace), default=0.0)
    outages = draw_outages(nodes, span_s, lose_every, lost_for, seed or 0) if lose_every else []
    if break_every and spec is not None:
        outages += draw_outages(nodes, span_s, break_every, broken_for, seed or 0, spec.rdus)
    with click.progressbar(length=len(trace), label="jobs", file=sys.stderr, hidden=not sys.stderr.isatty()) as bar:
        run = run_trace(
            trace, system, time.perf_counter, outages=outages, progress=lambda done: bar.update(done - bar.pos)
        )
    figures = sum_up(run, total, system.layout, system.rack_of)
    if as_json:
        name = None if spec is None else spec.platform
        show.print_json({"nodes": nodes, "platform": name, "tiles": total, **asdict(figures)})
    else:
        rows = (*_describe(figures, total, has_racks=bool(racks)), *_describe_places(figures, spec))
        tables.print_tables([tables.Table("", ("FIGURE", "VALUE"), rows, frozenset({"VALUE"}))])
    if output is not None:
        write_atomic(output, draw_run(run, system, outages).encode())
        click.echo(f"wrote {output}", err=True)


def _choose_trace(
    swf: Path | None, drawn: tuple[int | None, int | None, int | None, float | None],
    parts: tuple[float | None, float | None, float | None, float | None], tiles: int, nodes: int, zones: int,
) -> Sequence[TraceJob]:  # fmt: skip
    jobs, tenants, seed, load = drawn
    if swf is None:
        urgent, gangs, wide, constrained = (part or 0.0 for part in parts)
        return draw_trace(
            jobs or DEFAULT_JOBS, tenants or DEFAULT_TENANTS, tiles, seed or 0, load or 0.9, nodes,
            TraceParts(urgent, gangs, wide, constrained, zones),
        )  # fmt: skip
    if any(value is not None for value in (jobs, tenants, load, *parts)):
        raise InvalidArgument(
            "--swf cannot be combined with --jobs, --tenants, --load, --urgent, --gangs, --wide and --constrained, "
            "which "
            "draw a trace"
        )
    return read_trace(swf)


def _read_quotas(texts: Sequence[str], trace: Sequence[TraceJob]) -> dict[str, TenantShare]:
    tenants, quotas = {job.tenant_id for job in trace}, dict[str, TenantShare]()
    for tenant, text in parse_name_values("--quota", texts).items():
        if not text.isdigit():
            raise InvalidArgument(f"--quota {tenant}={text[:80]} is not a number of tiles; expected {tenant}=32")
        if tenant not in tenants:
            some = ", ".join(sorted(tenants)[:5])
            raise InvalidArgument(f"--quota {tenant[:80]}: that tenant has no jobs in the trace; expected {some}, …")
        quotas[tenant] = TenantShare(quota=int(text))
    return quotas


def _describe_part(name: str, count: int, wait_mean_s: float) -> list[tuple[str, str]]:
    return [(name, f"{count}"), (f"{name}, waiting, mean", f"{wait_mean_s:.1f} s")] if count else []


def _describe(figures: QueueFigures, tiles: int, *, has_racks: bool = False) -> list[tuple[str, str]]:
    return [
        ("jobs", f"{figures.jobs}"),
        ("refused for lack of a node", f"{figures.refused}"),
        ("preempted", f"{figures.preempted}"),
        ("lost with a node", f"{figures.lost}"),
        *([("lost with an RDU", f"{figures.broken}")] if figures.broken else []),
        *_describe_part("gangs", figures.gangs, figures.gang_wait_mean_s),
        *_describe_part("gangs on several nodes", figures.wide, figures.wide_wait_mean_s),
        *([("of these within one rack", f"{figures.wide_in_rack}")] if figures.wide and has_racks else []),
        *_describe_part("asking for a zone", figures.constrained, figures.constrained_wait_mean_s),
        ("work lost", f"{100 * figures.lost_work:.1f} %"),
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


def _describe_places(figures: QueueFigures, spec: NodeSpec | None) -> list[tuple[str, str]]:
    """Describe the nodes, and the distance between tiles of large jobs; empty if the layout is unknown."""
    if spec is None:
        return []
    node = f"{spec.xrdus} XRDUs of {spec.rdus_per_xrdu} RDUs of {spec.chip.tiles} tiles"
    fewest = f"{100 * figures.on_fewest_xrdus / figures.several_rdus:.1f} %" if figures.several_rdus else "-"
    return [
        (f"a node, {spec.platform}", node),
        ("on several RDUs", f"{figures.several_rdus}"),
        ("of these on the fewest XRDUs", fewest),
    ]
