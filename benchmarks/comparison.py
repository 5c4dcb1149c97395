"""What the benchmarks share: timing in turn, ratios within one run, a table and JSON."""

import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table


def interleave(
    variants: Mapping[str, Callable[[], Any]], ours: str, rounds: int, repeats: int, warmup: int = 5
) -> dict[str, Any]:
    """Time the variants in turn, ``rounds`` times ``repeats`` calls each.

    Returns:
        ``medians_us`` per variant, and ``ratios``: each peer's median over ours, above 1 where ours is faster.
    """
    for run in variants.values():
        for _ in range(warmup):
            run()
    samples: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(rounds):
        for name, run in variants.items():
            began = time.perf_counter()
            for _ in range(repeats):
                run()
            samples[name].append((time.perf_counter() - began) / repeats * 1e6)
    medians = {name: statistics.median(values) for name, values in samples.items()}
    return {
        "medians_us": medians,
        "spread": {name: max(values) / min(values) for name, values in samples.items()},
        "ratios": {name: medians[name] / medians[ours] for name in variants if name != ours},
    }


def report_table(title: str, rows: Sequence[Mapping[str, Any]], keys: Sequence[str], json_path: str | None) -> None:
    """Print one line a row with medians and ratios; write JSON if asked."""
    names = list(rows[0]["medians_us"])
    table = Table(title=title)
    for column in (*keys, *names, *(f"x {peer}" for peer in rows[0]["ratios"])):
        table.add_column(column, justify="left" if column in keys else "right")
    for row in rows:
        table.add_row(
            *(str(row[key]) for key in keys),
            *(f"{row['medians_us'][name]:.1f}" for name in names),
            *(f"{ratio:.2f}" for ratio in row["ratios"].values()),
        )
    Console(width=140).print(table)
    if json_path:
        write_json(json_path, {"title": title, "rows": list(rows)})


def write_json(path: str, value: Mapping[str, Any]) -> None:
    """Write figures with the machine's description."""
    machine = {"processor": platform.processor() or platform.machine(), "cores": os.cpu_count(),
               "python": platform.python_version()}  # fmt: skip
    Path(path).write_text(json.dumps({"machine": machine, **value}, indent=2, sort_keys=True) + "\n")
