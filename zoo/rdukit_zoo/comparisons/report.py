"""Rows as a table, JSON and a picture."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rdukit.cli.tables import Table
from rdukit.files.atomic import write_atomic, write_json_atomic
from rdukit_zoo.comparisons.model import Row
from rdukit_zoo.comparisons.picture import draw_rows
from rdukit_zoo.comparisons.runner import Outcome

_COLUMNS = ("QUESTION", "CASE", "OURS", "PEER", "OUR FIGURE", "PEER FIGURE", "UNIT", "RATIO", "BAR", "MET", "NOTE")
_NUMBERS = frozenset({"OUR FIGURE", "PEER FIGURE", "RATIO", "BAR"})


def make_table(rows: Sequence[Row]) -> Table:
    """One line a row; ratio is the peer's figure over ours."""
    return Table("", _COLUMNS, tuple(describe_row(row) for row in rows), _NUMBERS)


def describe_row(row: Row) -> tuple[str, ...]:
    """A table line's cells."""
    met = {True: "yes", False: "no", None: ""}[row.is_met]
    return (
        row.question, row.case, row.ours, row.peer, _figure(row.ours_value), _figure(row.peer_value), row.unit,
        "–" if row.ratio is None else f"{row.ratio:.2f}", "" if row.bar is None else f"{row.bar:.2f}", met, row.note,
    )  # fmt: skip


def report_body(outcomes: Sequence[Outcome], machine: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Everything as one JSON object: machine, options, rows, and which comparisons failed with why."""
    return {
        "machine": dict(machine),
        "options": dict(options),
        "rows": [row.body() for outcome in outcomes for row in outcome.rows],
        "failed": {outcome.name: outcome.error for outcome in outcomes if outcome.error},
    }


def write_report(folder: Path, body: Mapping[str, Any]) -> tuple[Path, Path]:
    """Write ``bench.json`` and ``bench.svg``. Returns their paths."""
    rows = [Row.from_body(row) for row in body["rows"]]
    folder.mkdir(parents=True, exist_ok=True)
    json_path, picture_path = folder / "bench.json", folder / "bench.svg"
    write_json_atomic(json_path, body)
    write_atomic(picture_path, draw_rows(rows, str(body["machine"]["processor"])).encode())
    return json_path, picture_path


def _figure(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.0f}" if value >= 1000 else f"{value:.1f}" if value >= 10 else f"{value:.3f}"
