"""``snddrstat``: what is read from and written to device memory, by DDR channel.

Source: runtime reference 6.2 (columns are ours: the vendor's are not public).
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import click

from rdukit.cli import run_command
from rdukit_runtime.cli.intervals import (
    Options,
    Tool,
    WhoColumns,
    holder_fields,
    statistics_options,
    without_node,
)
from rdukit_runtime.cli.run_statistics import run_tool
from rdukit_runtime.sampling import Reading
from rdukit_runtime.traffic import DDR, Traffic, spread_traffic

_PATH_WIDTH: Final = 22


def wanted_traffic(rows: Sequence[Traffic], options: Options) -> list[Traffic]:
    """Rows that pass the filters; with ``--skip-idle`` only those of RDUs that somebody holds or that moved bytes."""
    active = {row.rdu for row in rows if row.holder is not None or row.in_bytes or row.out_bytes}
    return [row for row in rows if options.wants(row.holder) and (row.rdu in active or not options.skip_idle)]


def channel_rows(before: Reading, after: Reading, options: Options) -> list[dict[str, Any]]:
    """One row a channel and lease that uses it: bytes in the window, GB/s (1e9 bytes), percent of its peak."""
    return [
        {
            "ddrch": without_node(row.path),
            "read_gb_s": row.in_rate / 1e9,
            "write_gb_s": row.out_rate / 1e9,
            "total_percent": row.percent,
            "read_bytes": row.in_bytes,
            "written_bytes": row.out_bytes,
            **holder_fields(row.holder),
            "health": row.health,
        }
        for row in wanted_traffic(spread_traffic(before, after, DDR), options)
    ]


def channel_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Header and one line a row."""
    who = WhoColumns.of(rows)
    lines = [f"{'DDRCH':<{_PATH_WIDTH}} {'rd_GB/s':>7} {'wr_GB/s':>7} {'tot%':>5}{who.head()}"]
    lines += [
        f"{row['ddrch']:<{_PATH_WIDTH}} {row['read_gb_s']:>7.3f} {row['write_gb_s']:>7.3f} "
        f"{row['total_percent']:>5.1f}{who.cells(row)}"
        for row in rows
    ]
    return lines


TOOL: Final = Tool(
    name="snddrstat",
    has_components=True,
    columns=(
        "ddrch", "read_gb_s", "write_gb_s", "total_percent", "read_bytes", "written_bytes",
        "pid", "user", "command", "application", "tenant", "job", "phase", "health",
    ),
    key="channels",
    rows=channel_rows,
    lines=channel_lines,
)  # fmt: skip


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@statistics_options
def snddrstat(socket_file: Any, **options: Any) -> None:
    """Show what is read from and written to device memory, by DDR channel.

    Bytes are those that the emulated device moved, a second of this machine's time; tot% is of the channel's peak. A
    channel that several programs use has a line for each.

    Example: snddrstat --skip-idle -i 1
    """
    run_tool(TOOL, Options(socket=socket_file, **options))


def main() -> None:
    """Entry point of the command."""
    run_command(snddrstat)


if __name__ == "__main__":
    main()
