"""``snpciestat``: what goes between host and RDUs, by PCIe link.

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
from rdukit_runtime.cli.snddrstat import wanted_traffic
from rdukit_runtime.sampling import Reading
from rdukit_runtime.traffic import PCIE, spread_traffic

_PATH_WIDTH: Final = 22


def link_rows(before: Reading, after: Reading, options: Options) -> list[dict[str, Any]]:
    """One row a link and lease that uses it: bytes in the window, GB/s (1e9 bytes), percent of the busier way, replays.

    ``rx``: from the host to the device.
    """
    return [
        {
            "pcie": without_node(row.path),
            "rx_gb_s": row.in_rate / 1e9,
            "tx_gb_s": row.out_rate / 1e9,
            "util_percent": row.percent,
            "replays": row.replays,
            "rx_bytes": row.in_bytes,
            "tx_bytes": row.out_bytes,
            **holder_fields(row.holder),
            "health": row.health,
        }
        for row in wanted_traffic(spread_traffic(before, after, PCIE), options)
    ]


def link_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Header and one line a row."""
    who = WhoColumns.of(rows)
    lines = [f"{'PCIE':<{_PATH_WIDTH}} {'rx_GB/s':>7} {'tx_GB/s':>7} {'util%':>6} {'replay':>7}{who.head()}"]
    lines += [
        f"{row['pcie']:<{_PATH_WIDTH}} {row['rx_gb_s']:>7.3f} {row['tx_gb_s']:>7.3f} "
        f"{row['util_percent']:>6.1f} {row['replays']:>7}{who.cells(row)}"
        for row in rows
    ]
    return lines


TOOL: Final = Tool(
    name="snpciestat",
    has_components=True,
    columns=(
        "pcie", "rx_gb_s", "tx_gb_s", "util_percent", "replays", "rx_bytes", "tx_bytes",
        "pid", "user", "command", "application", "tenant", "job", "phase", "health",
    ),
    key="links",
    rows=link_rows,
    lines=link_lines,
)  # fmt: skip


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@statistics_options
def snpciestat(socket_file: Any, **options: Any) -> None:
    """Show what goes between host and RDUs, by PCIe link.

    rx is from the host to the device. Bytes are those that programs moved, a second of this machine's time; util% is
    the busier direction's share of the link's peak. A link that several programs use has a line for each.

    Example: snpciestat --skip-idle -i 1
    """
    run_tool(TOOL, Options(socket=socket_file, **options))


def main() -> None:
    """Entry point of the command."""
    run_command(snpciestat)


if __name__ == "__main__":
    main()
