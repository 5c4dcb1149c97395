"""``rdukit job trace``: the phases of a job's time, as a waterfall."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import click

from rdukit.cli.commands import JSON_OPTION, TOKEN_OPTION
from rdukit.units import elapsed_s, format_seconds
from rdukit_platform.cli import connect, show
from rdukit_platform.cli.complete import JOBS

#: Width of a bar in characters, and characters for eighths.
BAR: Final = 32
_EIGHTHS: Final = " ▏▎▍▌▋▊▉█"


@click.command()
@click.argument("job_id", metavar="JOB", shell_complete=JOBS)
@JSON_OPTION
@TOKEN_OPTION
def trace(job_id: str, as_json: bool) -> None:
    """Show the phases of a job's time: queue, worker, box, compile phases and runs, each with its seconds.

    Example: rdukit job trace job-7k2m9x41abcd

    Example: rdukit job trace job-7k2m9x41abcd --json
    """
    with connect() as client:
        found = client.get(f"/v1/jobs/{job_id}/trace")
    if as_json:
        show.print_json(found)
        return
    click.echo(f"trace {found['trace_id']}")
    show.print_table(("SPAN", "SERVICE", "START", "TOOK", "EMULATED", ""), waterfall(found["spans"]))


def waterfall(spans: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """Return a trace's spans as rows, each after its parent (pure)."""
    first = min(span["start"] for span in spans)
    last = max(span["end"] or span["start"] for span in spans)
    depth: dict[str, int] = {}
    rows: list[tuple[str, ...]] = []
    for span in spans:
        depth[span["span_id"]] = depth.get(span["parent_id"], -1) + 1
        took_s = elapsed_s(span["start"], last if span["end"] is None else span["end"])
        emulated = span["attributes"].get("rdukit.emulated.seconds")
        rows.append(
            (
                "  " * depth[span["span_id"]] + span["name"] + (f" [{span['error']}]" if span["error"] else ""),
                span["service"],
                format_seconds(round(span["start"] - first, 6)),
                format_seconds(took_s) + ("" if span["end"] else " …"),
                "" if emulated is None else format_seconds(emulated),
                draw_bar(span["start"] - first, span["start"] + took_s - first, last - first),
            )
        )
    return rows


def draw_bar(start: float, end: float, whole: float) -> str:
    """Draw a bar from ``start`` to ``end`` of ``whole``, at least a sliver wide (pure)."""
    if whole <= 0:
        return ""
    left = min(round(start / whole * BAR), BAR - 1)
    eighths = max(1, round((end - start) / whole * BAR * 8))
    full, rest = divmod(min(eighths, (BAR - left) * 8), 8)
    return " " * left + "█" * full + (_EIGHTHS[rest] if rest else "")
