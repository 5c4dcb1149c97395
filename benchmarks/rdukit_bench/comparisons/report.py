"""Rows as a table, JSON and a picture."""

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, Final

from rdukit.cli.tables import Table
from rdukit.files.atomic import write_atomic, write_json_atomic
from rdukit.files.svg import svg_document, svg_text
from rdukit_bench.comparisons.model import BenchProgress, ComparisonRow
from rdukit_bench.comparisons.runner import ComparisonOutcome

_COLUMNS = ("QUESTION", "CASE", "OURS", "PEER", "OUR FIGURE", "PEER FIGURE", "UNIT", "RATIO", "BAR", "MET", "NOTE")
_NUMBERS = frozenset({"OUR FIGURE", "PEER FIGURE", "RATIO", "BAR"})


def make_table(rows: Sequence[ComparisonRow]) -> Table:
    """Return one line a row; ratio is the peer's figure over ours."""
    return Table("", _COLUMNS, tuple(describe_row(row) for row in rows), _NUMBERS)


def describe_row(row: ComparisonRow) -> tuple[str, ...]:
    """Return a table line's cells."""
    met = {True: "yes", False: "no", None: ""}[row.is_met]
    return (
        row.question, row.case, row.ours, row.peer, _figure(row.ours_value), _figure(row.peer_value), row.unit,
        "–" if row.ratio is None else f"{row.ratio:.2f}", "" if row.bar is None else f"{row.bar:.2f}", met, row.note,
    )  # fmt: skip


def describe_progress(progress: BenchProgress, elapsed_s: float) -> str:
    """Return one line: samples taken of a case, and what the rest will take if it goes on as in ``elapsed_s``."""
    line = f"{progress.case}: {progress.done} of {progress.total} samples"
    if not 0 < progress.done < progress.total:
        return line
    left_s = elapsed_s / progress.done * (progress.total - progress.done)
    return f"{line}, about {left_s:.0f} s left" if left_s < 120 else f"{line}, about {left_s / 60:.0f} min left"


def report_body(
    outcomes: Sequence[ComparisonOutcome], machine: Mapping[str, Any], options: Mapping[str, Any]
) -> dict[str, Any]:
    """Return one JSON object: machine, options, rows, and the comparisons that failed with their reasons."""
    return {
        "machine": dict(machine),
        "options": dict(options),
        "rows": [row.body() for outcome in outcomes for row in outcome.rows],
        "failed": {outcome.name: outcome.error for outcome in outcomes if outcome.error},
    }


def write_report(folder: Path, body: Mapping[str, Any]) -> tuple[Path, Path]:
    """Write ``bench.json`` and ``bench.svg``. Returns their paths."""
    rows = [ComparisonRow.from_body(row) for row in body["rows"]]
    folder.mkdir(parents=True, exist_ok=True)
    json_path, picture_path = folder / "bench.json", folder / "bench.svg"
    write_json_atomic(json_path, body)
    write_atomic(picture_path, draw_rows(rows, str(body["machine"]["processor"])).encode())
    return json_path, picture_path


def _figure(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.0f}" if value >= 1000 else f"{value:.1f}" if value >= 10 else f"{value:.3f}"


MARGIN: Final = 24
LABEL_WIDTH: Final = 430
SCALE_WIDTH: Final = 420
ROW_HEIGHT: Final = 22
#: Ratios beyond this end the scale: such a bar is cut and its figure stands beside it.
MAX_RATIO: Final = 4.0

_LIGHT: Final = """\
  .met { fill: #1a7f37; } .missed { fill: #cf222e; } .plain { fill: #8c959f; }
  .one { stroke: #57606a; stroke-width: 1.2; } .mark { stroke: #1b1f24; stroke-width: 2.5; }
  .number { text-anchor: start; }
"""
_DARK: Final = """\
    .met { fill: #3fb950; } .missed { fill: #f85149; } .plain { fill: #6e7681; }
    .one { stroke: #9198a1; } .mark { stroke: #e6edf3; }
"""


def draw_rows(rows: Sequence[ComparisonRow], machine: str) -> str:
    """Draw a complete SVG document; rows without a ratio get their note instead of a bar."""
    top = MARGIN + 52
    scale = min(MAX_RATIO, max([1.5, *(value for row in rows for value in (row.ratio, row.bar) if value)]))
    parts = []
    y, question = top, ""
    for row in rows:
        if row.question != question:
            question = row.question
            parts.append(svg_text(MARGIN, y + 15, "name", question))
            y += ROW_HEIGHT
        parts += _draw_row(row, y, scale)
        y += ROW_HEIGHT
    x = _place(1.0, scale)
    width, height = MARGIN * 2 + LABEL_WIDTH + SCALE_WIDTH + 110, y + MARGIN
    head = [
        svg_text(MARGIN, MARGIN + 14, "title", "rdukit bench: the peer's time over ours"),
        svg_text(MARGIN, MARGIN + 34, "dim", f"longer is better; line: as fast as the peer; mark: wanted — {machine}"),
        f'<line class="one" x1="{x}" x2="{x}" y1="{top}" y2="{y}"/>',
    ]
    title = "rdukit bench: the peer's time over ours"
    return svg_document([*parts, *head], width, height, title, _LIGHT, _DARK)


def _draw_row(row: ComparisonRow, y: int, scale: float) -> list[str]:
    label = f"{row.case}: {row.ours} / {row.peer}"
    parts = [svg_text(MARGIN + LABEL_WIDTH - 10, y + 15, "right", label if len(label) <= 58 else f"{label[:57]}…")]
    if row.ratio is None:
        return [*parts, svg_text(MARGIN + LABEL_WIDTH + 4, y + 15, "dim", row.note or "no figure")]
    kind = {True: "met", False: "missed", None: "plain"}[row.is_met]
    start, end = MARGIN + LABEL_WIDTH, _place(row.ratio, scale)
    title = escape(f"{label}: {row.ratio:.2f}x" + (f", wanted {row.bar:.2f}x" if row.bar else ""))
    parts.append(
        f'<rect class="{kind}" x="{start}" y="{y + 4}" width="{max(1, end - start)}" height="{ROW_HEIGHT - 8}">'
        f"<title>{title}</title></rect>"
    )
    beside = end
    if row.bar is not None:
        mark = _place(row.bar, scale)
        beside = max(end, mark)
        parts.append(f'<line class="mark" x1="{mark}" x2="{mark}" y1="{y + 1}" y2="{y + ROW_HEIGHT - 1}"/>')
    figure = f"{row.ratio:.2f}" if row.bar is None else f"{row.ratio:.2f} of {row.bar:.2f}"
    return [*parts, svg_text(beside + 6, y + 15, "number", figure)]


def _place(ratio: float, scale: float) -> int:
    return MARGIN + LABEL_WIDTH + round(min(ratio, scale) / scale * SCALE_WIDTH)
