"""``sntilestat``: use of each tile, and by which program.

Source: runtime reference 6.1.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import click

from rdukit import __version__
from rdukit.cli import run_command
from rdukit_node.cli.intervals import (
    StatisticsOptions,
    StatisticsTool,
    WhoColumns,
    holder_fields,
    run_tool,
    statistics_options,
    without_node,
)
from rdukit_node.telemetry.sampling import SHARES, Reading, tile_shares

_WIDTHS: Final = (5, 5, 6, 6, 6, 8)
_PATH_WIDTH: Final = 20


def tile_rows(before: Reading, after: Reading, options: StatisticsOptions) -> list[dict[str, Any]]:
    """Return a row per tile, in the node's order: six percentages with one decimal, with sum 100, and the holder."""
    tiles = tile_shares(before, after)
    active = {tile.rdu for tile in tiles if tile.holder is not None or tile.tenths[0] < 1000}
    return [
        {
            "tile": without_node(tile.path),
            **{name: tenths / 10 for name, tenths in zip(SHARES, tile.tenths, strict=True)},
            **holder_fields(tile.holder),
            "health": tile.health,
        }
        for tile in tiles
        if options.wants(tile.holder) and (tile.rdu in active or not options.skip_idle)
    ]


def tile_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the vendor's layout: header, one line per tile; an idle tile's line ends after the sixth number."""
    who = WhoColumns.of(rows)
    head = " ".join(f"{'%' + name:>{width}}" for name, width in zip(SHARES, _WIDTHS, strict=True))
    lines = [f"{'TILE':<{_PATH_WIDTH}} {head}{who.head()}"]
    for row in rows:
        numbers = " ".join(f"{row[name]:>{width}.1f}" for name, width in zip(SHARES, _WIDTHS, strict=True))
        lines.append(f"{row['tile']:<{_PATH_WIDTH}} {numbers}{who.cells(row)}")
    return lines


TOOL: Final = StatisticsTool(
    name="sntilestat",
    has_components=False,
    columns=("tile", *SHARES, "pid", "user", "command", "application", "tenant", "job", "phase", "health"),
    key="tiles",
    rows=tile_rows,
    lines=tile_lines,
)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="sntilestat")
@statistics_options
def sntilestat(socket_file: Any, **options: Any) -> None:
    """Show each tile's load and its application.

    Percentages are shares of the time since the previous sample; the first sample takes half a second. On a leased
    tile, %idle is the program's time on the host.

    Example: sntilestat --skip-idle -i 1 -T --count 10

    Example: sntilestat --job slurm-17 --json
    """
    run_tool(TOOL, StatisticsOptions(socket=socket_file, **options))


def main() -> None:
    """Entry point of the command."""
    run_command(sntilestat)


if __name__ == "__main__":
    main()
