"""Aligned tables on the command line, for people."""

import sys
from collections.abc import Iterable, Mapping, Sequence

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], colours: Mapping[str, str] | None = None
) -> None:
    """Aligned columns on stdout; ``colours`` by the text of a cell, seen on a terminal."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, column in enumerate(columns):
        # Ids come first and stay whole, so that they can be copied.
        table.add_column(column, no_wrap=number == 0, overflow="fold")
    for row in rows:
        table.add_row(*(Text(str(cell), style=(colours or {}).get(str(cell), "")) for cell in row))
    # Into a pipe a table is as wide as it needs to be: nothing is cut for who reads it there.
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 10_000)
    with console.capture() as captured:
        console.print(table)
    click.echo("\n".join(line.rstrip() for line in captured.get().splitlines()))
