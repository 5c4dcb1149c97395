"""A profile as tables for people: headings say which figures were measured here and which are projected. Pure.

Source: ours.
"""

from collections.abc import Sequence
from typing import Final

from rdukit.cli.tables import Table
from rdukit.units import format_bytes, format_count, format_seconds
from rdukit_runtime.engine.machine_limits import MachineLimits
from rdukit_runtime.profile.operators import OperatorRow
from rdukit_runtime.profile.pef import Profile, Row, exceeds_gemm_limit, group_rows

MOST_OPERATORS: Final = 20
_COLUMNS: Final = (
    "id", "type", "section", "kernel", "calls", "host time", "share", "emulated time", "flop", "bytes", "GFLOP/s",
    "GB/s", "dtype", "of limit", "bound by",
)  # fmt: skip


def profile_tables(profile: Profile, shows_all: bool) -> list[Table]:
    """Machine, sections, totals. Sections of one kernel share a row unless ``shows_all``."""
    rows = profile.rows if shows_all else group_rows(profile.rows)
    return [machine_table(profile.limits), sections_table(profile, rows), totals_table(profile)]


def machine_table(limits: MachineLimits) -> Table:
    """The limits that sections are held against."""
    gemm = ", ".join(f"{dtype} {_three(speed)}" for dtype, speed in limits.gemm.items())
    rows = (
        ("processor", f"{limits.processor}, {limits.threads} thread{'s' * (limits.threads != 1)}"),
        ("memory", f"read {_three(limits.read_gb_s)}, copy {_three(limits.copy_gb_s)} GB/s"),
        ("GEMM", f"{gemm} GFLOP/s"),
        ("operator call", format_seconds(limits.operator_s)),
    )
    title = "Limits of this machine (measured)"
    if limits.is_disturbed:
        title += f", too low perhaps: others used {limits.others_share:.0%} of the processors meanwhile"
    return Table(title, ("", ""), rows)


def sections_table(profile: Profile, rows: Sequence[Row]) -> Table:
    """One line a row, figures of one step, and what the step takes outside its sections."""
    lines = [
        (
            str(row.first.id), row.first.type.value, row.name, row.form, str(row.sections),
            format_seconds(row.measured_s), _percent(profile.share(row)), format_seconds(row.projected_s),
            format_count(row.flops), format_bytes(row.bytes), _three(row.gflop_s), _three(row.gb_s), row.dtype,
            _percent(row.limit_share), row.bound.value,
        )
        for row in rows
    ]  # fmt: skip
    outside = profile.outside_s / profile.measured_s if profile.measured_s else 0.0
    blank = [""] * len(_COLUMNS)
    blank[2], blank[5], blank[6] = "(outside sections)", format_seconds(profile.outside_s), _percent(outside)
    title = (
        f"Sections of {profile.pef}, one step: host time and speeds are measured here (median of {profile.runs} runs); "
        f"emulated time, flop and bytes are the cost model's for {profile.arch}"
    )
    text = frozenset({"type", "section", "kernel", "dtype", "bound by"})
    return Table(title, _COLUMNS, (*lines, tuple(blank)), frozenset(_COLUMNS) - text)


def totals_table(profile: Profile) -> Table:
    """One step, and what the two clocks say about it."""
    flops = sum(row.flops for row in profile.rows)
    moved = sum(row.bytes for row in profile.rows)
    limit_s = sum(row.limit_s for row in profile.rows)
    host_s = profile.measured_s
    rows = [
        ("host time (measured)", format_seconds(host_s)),
        ("emulated time (projected)", f"{format_seconds(profile.projected_s)} on {profile.arch}"),
        ("work (cost model)", f"{format_count(flops)} flop, {format_bytes(moved)}"),
        ("speed (measured)", f"{_three(flops / host_s / 1e9)} GFLOP/s, {_three(moved / host_s / 1e9)} GB/s"),
        ("all sections at their limit", f"{format_seconds(limit_s)}, {_percent(limit_s / host_s)} of the host time"),
    ]
    if any(row.is_beyond for row in profile.rows):
        reason = "the data were in the processor's caches, or less was moved than the cost model counts"
        rows.append(("above 100 % of limit", reason))
    if exceeds_gemm_limit(profile.rows):
        advice = "the GEMM limit was measured while the machine was busy: measure again with --measure-limits"
        rows.append(("limits are too low", advice))
    return Table("Totals of one step", ("", ""), tuple(rows))


def operators_table(rows: Sequence[OperatorRow], most: int = MOST_OPERATORS) -> Table:
    """The longest of them."""
    columns = ("section", "operator", "operands", "calls", "host time", "share")
    lines = tuple(
        (row.section, row.operator, row.shapes, f"{row.calls:g}", format_seconds(row.host_s), _percent(row.share))
        for row in rows[:most]
    )
    count = f"{len(lines)} of {len(rows)}, the longest first"
    title = f"Operators of one step, as generated ATen code, timed one by one (measured): {count}"
    return Table(title, columns, lines, frozenset({"calls", "host time", "share"}))


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _three(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
