"""Part of the picture of a simulated queue (pure): use of each RDU over time, and its outages."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from rdukit.files.svg import svg_text
from rdukit_platform.scheduler.figures import rdus_in
from rdukit_platform.scheduler.simulate import SimulatedJob, SimulatedSystem
from rdukit_platform.scheduler.traces import WHOLE, Outage

#: Largest number of rows; with more RDUs, a row is a node, or several nodes.
MAX_ROWS: Final = 64
#: Number of cells in a row, equal parts of the time.
CELLS: Final = 180
#: Number of shades from free to fully used.
SHADES: Final = 5
LEGEND_HEIGHT: Final = 44
_ROW: Final = 9
#: Pixels between rows of one XRDU, of two, and of two nodes.
_GAPS: Final = (1, 3, 7)
#: Share of a cell's time out of service above which the cell is drawn as such.
_AWAY: Final = 0.5

TILES_LIGHT: Final = """\
  .none { fill: #eef1f4; } .away { fill: #d1242f; } .u1 { fill: #d2e3f7; } .u2 { fill: #a8c9ee; }
  .u3 { fill: #74a6dd; } .u4 { fill: #3f80c4; } .u5 { fill: #1c5596; }
"""
TILES_DARK: Final = """\
    .none { fill: #1c2128; } .away { fill: #f85149; } .u1 { fill: #12314f; } .u2 { fill: #1b4a78; }
    .u3 { fill: #2a68a5; } .u4 { fill: #4a90d9; } .u5 { fill: #8ec2ff; }
"""


@dataclass(slots=True)
class TileRow:
    """A row: its name, its gap to the row above, and the fractions in use and out of service per cell."""

    name: str
    gap: int
    used: list[float]
    away: list[float]


def tile_rows(
    attempts: Iterable[SimulatedJob], system: SimulatedSystem, outages: Iterable[Outage], start: float, end: float
) -> list[TileRow]:
    """Return the rows, from the first node on: of RDUs, or of nodes if there are too many."""
    width, per_xrdu = system.layout.rdu_tiles, system.layout.xrdu_rdus or 1
    rdus = -(-system.tiles // width)
    #: Number of RDUs per row.
    each = 1 if system.nodes * rdus <= MAX_ROWS else rdus * -(-system.nodes // MAX_ROWS)
    rows = list[TileRow]()
    for first in range(0, system.nodes * rdus, each):
        node, rdu = divmod(first, rdus)
        gap = _GAPS[0 if each > 1 else 2 if not rdu else 1 if rdu % per_xrdu == 0 else 0]
        last = min((first + each - 1) // rdus, system.nodes - 1)
        name = f"{node}" if node == last or each == 1 else f"{node}-{last}"
        rows.append(TileRow(name if rdu == 0 else "", gap, [0.0] * CELLS, [0.0] * CELLS))
    cell_s = (end - start) / CELLS or 1.0

    def add(of_row: list[float], began: float, ended: float, part: float) -> None:
        first, last = (min(max((at - start) / cell_s, 0.0), float(CELLS)) for at in (began, ended))
        for cell in range(int(first), min(int(last) + 1, CELLS)):
            of_row[cell] += part * (min(last, cell + 1) - max(first, cell))

    whole = (1 << width) - 1
    for job in attempts:
        for node_name, mask in job.held:
            for rdu in rdus_in(mask, width):
                share = (mask >> rdu * width & whole).bit_count() / width / each
                add(rows[(int(node_name) * rdus + rdu) // each].used, job.started, job.ended, share)
    for outage in outages:
        for rdu in range(rdus) if outage.rdu == WHOLE else (outage.rdu,):
            add(rows[(int(outage.node) * rdus + rdu) // each].away, outage.at, outage.until, 1 / each)
    return rows


def draw_tiles(rows: Sequence[TileRow], left: int, right: int, top: float) -> tuple[list[str], float]:
    """Draw the rows from ``top`` on; neighbouring cells of one shade are one shape. Returns them, and the lower end."""
    parts = [svg_text(left, top - 8, "dim", "tiles in use, a line for each RDU, or for nodes; red: out of service")]
    step, y = (right - left) / CELLS, top
    for number, row in enumerate(rows):
        y += row.gap if number else 0
        if row.name:
            parts.append(svg_text(left - 6, y + _ROW, "right dim", row.name))
        shades = [_shade(used, away) for used, away in zip(row.used, row.away, strict=True)]
        began = 0
        for cell in range(1, CELLS + 1):
            if cell == CELLS or shades[cell] != shades[began]:
                x, wide = round(left + began * step, 1), round((cell - began) * step, 1)
                parts.append(f'<rect class="{shades[began]}" x="{x}" y="{y:g}" width="{wide}" height="{_ROW}"/>')
                began = cell
        y += _ROW
    return parts, y


def _shade(used: float, away: float) -> str:
    if away >= _AWAY:
        return "away"
    level = round(min(used, 1.0) * SHADES)
    return f"u{level}" if level else "none"
