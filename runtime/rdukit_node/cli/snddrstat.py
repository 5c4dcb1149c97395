"""``snddrstat``: show reads and writes of device memory by DDR channel.

Source: runtime reference 6.2 (columns are ours: the vendor's are not public).
"""

from typing import Any, Final

import click

from rdukit import __version__
from rdukit.cli import run_command
from rdukit_node.cli.intervals import Column, StatisticsOptions, TrafficTable, run_tool, statistics_options
from rdukit_node.telemetry.traffic import DDR

#: GB/s (1e9 bytes) read and written, percent of the channel's peak, bytes in the window.
TABLE: Final = TrafficTable(
    DDR,
    (
        Column("read_gb_s", lambda row: row.in_rate / 1e9, "rd_GB/s", 7, 3),
        Column("write_gb_s", lambda row: row.out_rate / 1e9, "wr_GB/s", 7, 3),
        Column("total_percent", lambda row: row.percent, "tot%", 5, 1),
        Column("read_bytes", lambda row: row.in_bytes),
        Column("written_bytes", lambda row: row.out_bytes),
    ),
)
TOOL: Final = TABLE.tool("snddrstat", "channels")


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="snddrstat")
@statistics_options
def snddrstat(socket_file: Any, **options: Any) -> None:
    """Show reads and writes of device memory, by DDR channel.

    Bytes are those that the emulated device moved, per second of this machine's time; tot% refers to the channel's
    peak. A channel that several programs use has a line per program.

    Example: snddrstat --skip-idle -i 1

    Example: snddrstat --job slurm-17 --csv
    """
    run_tool(TOOL, StatisticsOptions(socket=socket_file, **options))


def main() -> None:
    """Entry point of the command."""
    run_command(snddrstat)


if __name__ == "__main__":
    main()
