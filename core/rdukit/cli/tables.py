"""Aligned tables on the command line: fitted to the width of a terminal, or one plain line for each row in a pipe.

On a narrow screen, cells wrap between words. If the columns still do not fit, the table is split into bands, and each
band repeats the first column. Words are never broken, so that they can be copied. Control characters are printed as
escapes, so that another user's name can neither move the cursor nor add a row.
"""

import os
import re
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import click

_GAP: Final = "  "
#: Minimum width of a column that shrinks.
_NARROWEST: Final = 16
_CONTROLS: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")
#: Parts between which a cell may wrap: after a space or a comma, but not inside a time.
_WORDS: Final = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d(?::\d\d)?|[^\s,]*,+|[^\s,]+|\s+")

Styles = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of text under column names; columns in ``right`` are aligned to the right."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right: frozenset[str] = frozenset()


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], colours: Styles | None = None) -> None:
    """Print aligned columns; ``colours``: cell text → colour, used on a terminal."""
    print_tables([Table("", tuple(columns), tuple(tuple(map(str, row)) for row in rows))], colours)


def print_fields(fields: Iterable[tuple[str, object]]) -> None:
    """Print a name and a value per line. Fields without a value are left out; line breaks in values are kept."""
    rows = tuple((name, str(value)) for name, value in fields if value not in (None, ""))
    print_tables([Table("", ("", ""), rows)])


def print_tables(tables: Iterable[Table], colours: Styles | None = None) -> None:
    """Print tables with an empty line between them."""
    width = screen_width()
    styles = {} if colours is None or width is None or os.environ.get("NO_COLOR") else colours
    click.echo("\n\n".join(format_table(table, width, styles) for table in tables))


def screen_width() -> int | None:
    """Return the width of the terminal on stdout in columns; ``None``: stdout is not a terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def format_table(table: Table, width: int | None = None, styles: Styles | None = None) -> str:
    """Return the table as lines: title, column names, rows. Without column names a row is a name and a value.

    Args:
        width: columns of the screen; ``None``: unlimited.
        styles: cell text → colour.
    """
    has_head = any(table.columns)
    rows = [[escaped(cell, keeps_lines=not has_head) for cell in row] for row in table.rows]
    grid: list[Sequence[str]] = [table.columns, *rows] if has_head else [*rows]
    indent = "  " if table.title else ""
    room = None if width is None else width - len(indent)
    natural = [
        max((len(part) for line in grid for part in line[i].split("\n")), default=0) for i in range(len(table.columns))
    ]
    least = [min(natural[i], max(_NARROWEST, _longest_word(grid, i))) for i in range(len(table.columns))]
    least[:1] = natural[:1]
    lines = [table.title] if table.title and width is None else _wrap(table.title, width or 0) if table.title else []
    for number, band in enumerate(_bands(natural, least, room)):
        lines += [""] * (number > 0)
        widths = _fit(band, natural, least, room)
        for line in grid:
            if number == 0 or any(line[i] for i in band[1:]):
                lines += [indent + text for text in _format_line(table, line, band, widths, styles or {})]
    return "\n".join(lines)


def _format_line(
    table: Table, line: Sequence[str], band: Sequence[int], widths: Sequence[int], styles: Styles
) -> list[str]:
    cells = [_wrap(line[i], width) for i, width in zip(band, widths, strict=True)]
    found = []
    for row in range(max(map(len, cells))):
        parts = []
        for i, cell, width in zip(band, cells, widths, strict=True):
            text = cell[row] if row < len(cell) else ""
            padded = text.rjust(width) if table.columns[i] in table.right else text.ljust(width)
            colour = styles.get(line[i])
            parts.append(padded.replace(text, click.style(text, fg=colour)) if colour and text else padded)
        found.append(_GAP.join(parts).rstrip())
    return found


def _bands(natural: Sequence[int], least: Sequence[int], room: int | None) -> list[list[int]]:
    """Divide the columns into as few bands as the screen's width allows; return the column positions of each."""
    bands: list[list[int]] = [[]]
    for i in range(len(natural)):
        begun = bands[-1]
        used = sum(least[j] + len(_GAP) for j in begun)
        if room is not None and len(begun) > 1 and used + least[i] > room:
            bands.append([0])
        bands[-1].append(i)
    return bands


def _fit(band: Sequence[int], natural: Sequence[int], least: Sequence[int], room: int | None) -> list[int]:
    """Return the widths of a band's columns: the widest give way until the line fits."""
    widths = [natural[i] for i in band]
    while room is not None and sum(widths) + len(_GAP) * (len(band) - 1) > room:
        widest = max(range(len(band)), key=lambda k: (widths[k] > least[band[k]], widths[k]))
        if widths[widest] <= least[band[widest]]:
            break
        widths[widest] -= 1
    return widths


def escaped(text: str, *, keeps_lines: bool = False) -> str:
    """Return foreign text with its control characters as Python escapes, so that a terminal does not act on them."""
    if keeps_lines and "\n" in text:
        return "\n".join(escaped(line, keeps_lines=False) for line in text.splitlines())
    return _CONTROLS.sub(lambda found: repr(found[0])[1:-1], text)


def _wrap(text: str, width: int) -> list[str]:
    if "\n" in text:
        return [line for part in text.split("\n") for line in _wrap(part, width)]
    if len(text) <= width:
        return [text]
    lines = [""]
    for word in _WORDS.findall(text):
        if lines[-1] and len(lines[-1]) + len(word.rstrip()) > width:
            lines.append("")
        if lines[-1] or not word.isspace():
            lines[-1] += word
    return [line.rstrip() for line in lines if line.strip()] or [""]


def _longest_word(grid: Sequence[Sequence[str]], i: int) -> int:
    return max((len(word) for line in grid for word in _WORDS.findall(line[i])), default=0)
