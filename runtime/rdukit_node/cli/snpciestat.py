"""``snpciestat``: traffic between host and RDUs, by PCIe link.

Source: runtime reference 6.2 (columns are ours: the vendor's are not public).
"""

from typing import Any, Final

import click

from rdukit import __version__
from rdukit.cli import run_command
from rdukit_node.cli.intervals import Column, StatisticsOptions, TrafficTable, run_tool, statistics_options
from rdukit_node.telemetry.traffic import PCIE

#: GB/s (1e9 bytes), ``rx`` from the host to the device; percent of the busier way's peak, replays, bytes in the window.
TABLE: Final = TrafficTable(
    PCIE,
    (
        Column("rx_gb_s", lambda row: row.in_rate / 1e9, "rx_GB/s", 7, 3),
        Column("tx_gb_s", lambda row: row.out_rate / 1e9, "tx_GB/s", 7, 3),
        Column("util_percent", lambda row: row.percent, "util%", 6, 1),
        Column("replays", lambda row: row.replays, "replay", 7),
        Column("rx_bytes", lambda row: row.in_bytes),
        Column("tx_bytes", lambda row: row.out_bytes),
    ),
)
TOOL: Final = TABLE.tool("snpciestat", "links")


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="snpciestat")
@statistics_options
def snpciestat(socket_file: Any, **options: Any) -> None:
    """Show the traffic between host and RDUs, by PCIe link.

    rx is from the host to the device. Bytes are those that programs moved, a second of this machine's time; util% is
    the busier direction's share of the link's peak. A link that several programs use has a line for each.

    Example: snpciestat --skip-idle -i 1

    Example: snpciestat --json
    """
    run_tool(TOOL, StatisticsOptions(socket=socket_file, **options))


def main() -> None:
    """Entry point of the command."""
    run_command(snpciestat)


if __name__ == "__main__":
    main()
