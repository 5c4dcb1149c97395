"""The table that snddrstat and snpciestat are: a row for each channel or link and lease that uses it. Pure.

Source: runtime reference 6.2 (columns are ours: the vendor's are not public).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rdukit_node.cli.intervals import Options, Tool, WhoColumns, holder_fields, without_node
from rdukit_node.telemetry.sampling import Reading
from rdukit_node.telemetry.traffic import Traffic, spread_traffic

_PATH_WIDTH: Final = 22
_WHO: Final = ("pid", "user", "command", "application", "tenant", "job", "phase", "health")


@dataclass(frozen=True, slots=True)
class Column:
    """One figure of a row: its name for machines, and for people a head, a width and decimals; no head: not shown."""

    name: str
    value: Callable[[Traffic], float]
    head: str = ""
    width: int = 0
    decimals: int = 0


@dataclass(frozen=True, slots=True)
class TrafficTable:
    """The table of one kind of component: ``traffic.DDR`` or ``traffic.PCIE``."""

    kind: str
    columns: tuple[Column, ...]

    def rows(self, before: Reading, after: Reading, options: Options) -> list[dict[str, Any]]:
        """One row a component and lease that uses it, of those that the options ask for."""
        return [
            {
                self.kind.lower(): without_node(row.path),
                **{column.name: column.value(row) for column in self.columns},
                **holder_fields(row.holder),
                "health": row.health,
            }
            for row in wanted_traffic(spread_traffic(before, after, self.kind), options)
        ]

    def lines(self, rows: Sequence[Mapping[str, Any]]) -> list[str]:
        """Header and one line a row."""
        who = WhoColumns.of(rows)
        shown = [column for column in self.columns if column.head]
        heads = [f"{column.head:>{column.width}}" for column in shown]
        lines = [f"{self.kind:<{_PATH_WIDTH}} {' '.join(heads)}{who.head()}"]
        for row in rows:
            cells = [f"{row[column.name]:>{column.width}.{column.decimals}f}" for column in shown]
            lines.append(f"{row[self.kind.lower()]:<{_PATH_WIDTH}} {' '.join(cells)}{who.cells(row)}")
        return lines

    def tool(self, name: str, key: str) -> Tool:
        """The tool that shows it. ``key``: of the list of rows in the JSON document."""
        return Tool(
            name=name,
            has_components=True,
            columns=(self.kind.lower(), *(column.name for column in self.columns), *_WHO),
            key=key,
            rows=self.rows,
            lines=self.lines,
        )


def wanted_traffic(rows: Sequence[Traffic], options: Options) -> list[Traffic]:
    """Rows that pass the filters; with ``--skip-idle`` only those of RDUs that somebody holds or that moved bytes."""
    active = {row.rdu for row in rows if row.holder is not None or row.in_bytes or row.out_bytes}
    return [row for row in rows if options.wants(row.holder) and (row.rdu in active or not options.skip_idle)]
