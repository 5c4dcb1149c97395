"""Picture of a simulated queue as SVG (pure): tiles in use, and waiting jobs, over time."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from rdukit.files.svg import svg_document, svg_text
from rdukit_platform.cli.simulated_tiles import LEGEND_HEIGHT, TILES_DARK, TILES_LIGHT, draw_tiles, tile_rows
from rdukit_platform.console.curve import nice_ticks
from rdukit_platform.scheduler.figures import sum_up
from rdukit_platform.scheduler.simulate import SimulatedJob, SimulatedRun, SimulatedSystem
from rdukit_platform.scheduler.traces import Outage

WIDTH: Final = 900
PANEL_HEIGHT: Final = 170
LEFT: Final = 60
MARGIN: Final = 24
#: Number of points of a line; each shows the mean of its interval.
POINTS: Final = 400
#: Names of the subsets of jobs, by style.
LEGEND: Final = {"gangs": "gangs", "constrained": "asking for a zone"}

_LIGHT: Final = """\
  .area { fill: #8fb8e8; stroke: #2f6fb5; }
  .gangs { fill: #d9822b; fill-opacity: 0.75; stroke: #a85a10; }
  .constrained { fill: none; stroke: #1a7f37; stroke-width: 1.5; }
"""
_DARK: Final = """\
    .area { fill: #1f4b7a; stroke: #6cb0ff; }
    .gangs { fill: #b0651d; stroke: #f0a95b; } .constrained { stroke: #56d364; }
"""


def draw_run(run: SimulatedRun, system: SimulatedSystem, outages: Sequence[Outage] = ()) -> str:
    """Draw a complete SVG document; if the nodes have RDUs, with the use of each."""
    tiles = system.all_tiles
    figures = sum_up(run, tiles, system.layout)
    start = min((done.job.at for done in run.jobs), default=0.0)
    end = max((done.ended for done in run.jobs), default=1.0)
    attempts = (*run.jobs, *run.cut)
    kinds = {
        "area": attempts,
        "gangs": [done for done in attempts if done.job.is_gang],
        "constrained": [done for done in attempts if done.job.constraint],
    }
    shown = {kind: of for kind, of in kinds.items() if of or kind == "area"}

    def means(spans: Callable[[SimulatedJob], tuple[float, float, int]]) -> dict[str, list[float]]:
        return {kind: step_means([spans(done) for done in of], start, end, POINTS) for kind, of in shown.items()}

    used = means(lambda done: (done.started, done.ended, done.job.tiles))
    waiting = means(lambda done: (done.queued_at, done.started, 1))
    words = (
        f"{figures.jobs} jobs of {figures.tenants} tenants on {tiles} tiles: {100 * figures.utilisation:.1f} % used, "
        f"fairness {figures.fairness:.3f}"
    )
    more = (
        f"waiting {figures.wait_mean_s:.0f} s, 95th percentile {figures.wait_p95_s:.0f} s; "
        f"{figures.preempted} preempted, {figures.lost + figures.broken} lost"
    )
    legend = [kind for kind in shown if kind != "area"]
    top = MARGIN + 86 + (20 if legend else 0)
    parts = [
        svg_text(MARGIN, MARGIN + 14, "title", "rdukit simulate queue"),
        svg_text(MARGIN, MARGIN + 34, "dim", words),
        svg_text(MARGIN, MARGIN + 52, "dim", more),
        *_draw_legend(legend, MARGIN + 74),
        *_draw_panel("tiles in use", used, float(tiles), top, start, end),
        *_draw_panel("jobs that wait", waiting, 0.0, top + PANEL_HEIGHT + 50, start, end),
    ]
    height = top + 2 * PANEL_HEIGHT + 80
    if system.layout.rdu_tiles:
        rows = tile_rows(attempts, system, (*outages, *system.maintenance), start, end)
        drawn, lower = draw_tiles(rows, LEFT, WIDTH - MARGIN, height + LEGEND_HEIGHT)
        parts += drawn
        height = round(lower) + MARGIN
    light, dark = _LIGHT + TILES_LIGHT, _DARK + TILES_DARK
    return svg_document(parts, WIDTH, height, f"Simulated queue of {figures.jobs} jobs", light, dark)


def step_means(spans: Sequence[tuple[float, float, int]], start: float, end: float, points: int) -> list[float]:
    """Return the mean of the summed heights in each of ``points`` equal intervals.

    Args:
        spans: begin, end and height of each summand.
    """
    width = (end - start) / points or 1.0
    # Sums of heights, and of heights times the rest of the interval; both change at a span's begin and end.
    steps, parts = [0.0] * (points + 1), [0.0] * (points + 1)
    for began, ended, height in spans:
        for at, change in ((began, height), (ended, -height)):
            place = min(int((at - start) / width), points)
            parts[place] += change * (1.0 - ((at - start) / width - place)) if place < points else 0.0
            steps[place] += change
    means, level = [], 0.0
    for place in range(points):
        means.append(max(level + parts[place], 0.0))
        level += steps[place]
    return means


def _draw_legend(kinds: Sequence[str], y: int) -> list[str]:
    """Draw the legend of the subsets' colours; an empty list for no ``kinds``."""
    parts, x = list[str](), MARGIN
    for kind in kinds:
        parts.append(f'<rect class="{kind}" x="{x}" y="{y - 9}" width="14" height="9"/>')
        parts.append(svg_text(x + 20, y, "dim", f"of these {LEGEND[kind]}"))
        x += 240
    return parts


def _draw_panel(
    name: str, lines: Mapping[str, Sequence[float]], least_top: float, top: int, start: float, end: float
) -> list[str]:
    """Draw lines over each other, by style: the first shows all jobs, the others subsets."""
    values = lines["area"]
    ticks = nice_ticks(0.0, max(least_top, *values, 1.0), 4)
    bottom, highest = top + PANEL_HEIGHT, max(ticks[-1], 1.0)
    right = WIDTH - MARGIN
    step = (right - LEFT) / len(values)

    def place(value: float) -> float:
        return round(bottom - value / highest * PANEL_HEIGHT, 1)

    parts = [svg_text(LEFT, top - 8, "dim", name)]
    for tick in ticks:
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{right}" y1="{place(tick)}" y2="{place(tick)}"/>')
        parts.append(svg_text(LEFT - 6, place(tick) + 4, "right dim", f"{tick:g}"))
    for style, of in lines.items():
        line = "".join(f"L{LEFT + (i + 0.5) * step:.1f},{place(value)}" for i, value in enumerate(of))
        parts.append(f'<path class="{style}" d="M{LEFT},{bottom}{line}L{right},{bottom}Z"/>')
    hours = (end - start) / 3600
    for tick in nice_ticks(0.0, hours, 6):
        if tick <= hours:
            x = LEFT + (tick / hours if hours else 0.0) * (right - LEFT)
            parts.append(svg_text(round(x, 1), bottom + 18, "middle dim", f"{tick:g} h"))
    return parts
