"""Comparison of runs of ``sambatune``: configuration first, then host, sections, stages. Pure.

Each run was measured once, so differences are shown without a verdict: ``rdukit pef compare`` decides with confidence.

Source: sambatune reference 1.5 (order of the vendor's comparison); columns are ours.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rdukit_runtime.sambatune.reports import Row
from rdukit_runtime.sambatune.ui.runs import TuneRun

#: A table: title, heading of the first column, and rows of a name and a value a run.
Cells = tuple[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class ComparedTable:
    """A part of the comparison. ``rows``: a name, then a text for each run and its ratio to the first."""

    title: str
    note: str
    rows: Sequence[Cells]


def compare_runs(runs: Sequence[TuneRun]) -> list[ComparedTable]:
    """Return the tables that compare runs, in order."""
    configurations = [run.document("configuration.json") for run in runs]
    return [
        ComparedTable("Configuration: what differs", "", _configuration(configurations)),
        ComparedTable("Throughput", "samples/s, measured on the machine of each run", [
            ("throughput", _figures([run.throughput for run in runs])),
        ]),
        ComparedTable("Host", "percent of the time from the first run to the last, measured", _by_key(
            [run.table("reports/snprof/summary.csv") for run in runs], _breakdown_key, _last_figure)),
        ComparedTable("Sections", "seconds a run, measured on the machine of each run", _by_key(
            [run.table("reports/section_report.csv") for run in runs], _section_key, "host_latency_s")),
        ComparedTable("Sections, projected", "seconds a run on the emulated chip, projected by the cost model", _by_key(
            [run.table("reports/section_report.csv") for run in runs], _section_key, "projected_latency_s")),
        ComparedTable("Stages", "cycles, projected by the cost model", _by_key(
            [run.table("reports/stage_report.csv") for run in runs], _stage_key, "projected_latency_cycles")),
    ]  # fmt: skip


def _configuration(found: Sequence[Mapping[str, Any]]) -> list[Cells]:
    keys = sorted({key for each in found for key in each})
    rows = [(key, tuple(_text(each.get(key)) for each in found)) for key in keys]
    return [(key, texts) for key, texts in rows if len(set(texts)) > 1]


def _text(value: object) -> str:
    if isinstance(value, list):
        return " ".join(map(str, value))
    if isinstance(value, dict):
        return ", ".join(f"{key}={each}" for key, each in sorted(value.items()))
    return "" if value is None else str(value)


def _by_key(
    tables: Sequence[Sequence[Row]], key: Callable[[Row], str], column: str | Callable[[Row], object]
) -> list[Cells]:
    """Return a row for each key of any table, in the order of their first appearance."""
    read = column if callable(column) else lambda row: row.get(column)
    by_run = [{key(row): _number(read(row)) for row in table} for table in tables]
    keys = dict.fromkeys(name for each in by_run for name in each)
    return [(name, _figures([each.get(name) for each in by_run])) for name in keys]


def _section_key(row: Row) -> str:
    return f"{row.get('section_id')} {row.get('section_name')}"


def _stage_key(row: Row) -> str:
    return f"section {row.get('section_id')}, stage {row.get('stage_id')}: {row.get('template_names')}"


def _breakdown_key(row: Row) -> str:
    return str(next(iter(row.values()), ""))


def _last_figure(row: Row) -> object:
    return list(row.values())[-1] if row else None


def _number(value: object) -> float | None:
    try:
        return float(str(value))
    except ValueError:
        return None


def _figures(values: Sequence[float | None]) -> tuple[str, ...]:
    """Return figures as text; later ones with their ratio to the first."""
    first = values[0]
    texts = []
    for number, value in enumerate(values):
        if value is None:
            texts.append("not measured")
        elif number == 0 or not first:
            texts.append(f"{value:.6g}")
        else:
            texts.append(f"{value:.6g} ({value / first:.3f} times the first)")
    return tuple(texts)
