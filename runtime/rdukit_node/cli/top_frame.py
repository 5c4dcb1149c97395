"""Frame of ``rdukit node top``: a picture of a node, drawn with rich for any width and height (pure).

Colours only repeat letters and signs, so nothing is lost without them.

Source: ours.
"""

from collections.abc import Sequence
from enum import IntEnum
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from rdukit.units import format_bytes, format_seconds
from rdukit_node.cli.intervals import printable, without_node
from rdukit_node.cli.output import time_text
from rdukit_node.telemetry.picture import LETTERS, Picture, RduPicture, RunningApplication, TileCell, XrduPicture

#: Colours of applications, distinct from each other and from the red and yellow of faults.
_COLOURS: Final = (
    "#4cc9f0", "#90be6d", "#c792ea", "#f8961e", "#43d9ad", "#ff8fab",
    "#82aaff", "#c3e88d", "#e0aaff", "#ffd6a5", "#2ec4b6", "#b8c0ff",
)  # fmt: skip
_LEVELS: Final = "▁▂▃▄▅▆▇█"
_SEVERITY_STYLES: Final = {"Critical": "bold red", "Major": "red", "Minor": "yellow"}
_STATE_STYLES: Final = {"PENDING": "yellow", "DEGRADED": "yellow", "UNAVAILABLE": "bold red"}
_CELL_WIDTH: Final = 3
#: ``RDU 0 `` before the tiles, `` 100%`` after them.
_LABEL_WIDTH: Final = 6
_PERCENT_WIDTH: Final = 5
_CARD_GAP: Final = 2
_MIN_CARD: Final = 34
#: Width from which on applications show their command line, and width below which they lack user, job and PCIe.
_WIDE: Final = 120
_NARROW: Final = 76


class Detail(IntEnum):
    """Levels of detail of the grid, from full to small enough for a low screen."""

    TRAFFIC = 0
    GAPS = 1
    TITLES = 2
    TILES = 3


#: Detail of the grid and lines of faults and of waiting requests, in the order in which they are tried.
_LAYOUTS: Final = (*((detail, (4, 3)) for detail in Detail), (Detail.TILES, (2, 1)), (Detail.TILES, (1, 1)))


def draw(picture: Picture, width: int, height: int | None = None) -> RenderableType:
    """Return the whole frame. ``height``: lines of the screen; ``None``: unlimited."""
    head, occupants = _head(picture, width), max(1, len(picture.occupants)) + 1
    for detail, (most_faults, most_waiting) in _LAYOUTS:
        grid = _grid(picture.xrdus, width, detail)
        tail = [*_fault_lines(picture, width, most_faults), *_waiting_lines(picture, width, most_waiting)]
        used = len(head) + 1 + len(grid) + len(tail)
        if height is None or used + occupants <= height:
            break
    room = None if height is None else max(2, height - used)
    return Group(*head, Text(), *grid, *_occupant_lines(picture, width, room), *tail)


def draw_down(reason: str, width: int) -> RenderableType:
    """Return the frame shown while no daemon answers."""
    return Group(
        Text(" no node daemon answers ", "bold white on red"), Text(), Text(reason), Text("trying again …", "dim")
    )


def rate_text(bytes_per_second: float) -> str:
    """Return ``12.3 GB/s``, in decimal units; ``-`` for nothing."""
    if bytes_per_second < 0.5:
        return "-"
    for factor, unit in ((1e12, "TB/s"), (1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s")):
        if bytes_per_second >= factor * 0.9995:
            value = bytes_per_second / factor
            return f"{value:.0f} {unit}" if value >= 99.95 else f"{value:.3g} {unit}"
    return f"{bytes_per_second:.0f} B/s"


def colour(slot: int) -> str:
    """Return an application's colour."""
    return _COLOURS[slot % len(_COLOURS)]


# -- head ------------------------------------------------------------------------------------------------------------


def _head(picture: Picture, width: int) -> list[Text]:
    status, memory = picture.status, picture.status["memory"]
    left = Text.assemble(
        (f" {status['node']} ", "bold black on #4cc9f0"), f" {status['platform']}",
        (f" ({status['chip']})  up {format_seconds(status['uptime_s'])}", "dim"),
    )  # fmt: skip
    title = _spread(left, Text(time_text(picture.time_ns), "dim"), width)
    used, tiles = picture.tiles_in_use, sum(len(rdu.cells) for x in picture.xrdus for rdu in x.rdus)
    faults, database = len(picture.faults), status.get("database", {})
    figures = Text.assemble(
        "tiles ", (f"{used}", "bold"), f"/{tiles}  ", (_bar(used / max(1, tiles), 10), "#4cc9f0"),
        "   apps ", (f"{status['applications']}", "bold"), f"/{status['max_applications']}",
        "   memory ", (format_bytes(memory["used"]), "bold"), f"/{format_bytes(memory['total'])}",
    )  # fmt: skip
    worst = _SEVERITY_STYLES.get(str(picture.faults[0]["severity"]), "red") if faults else "green"
    health = Text(f"● {faults} fault{'s' * (faults != 1)}" if faults else "● healthy", worst)
    if not faults and not picture.is_whole:
        health = Text("● degraded", "yellow")
    if not database.get("is_writable", True):
        health = Text.assemble(("● database not writable  ", "bold red"), health)
    return [title, _spread(figures, health, width)]


def _spread(left: Text, right: Text, width: int) -> Text:
    """Put two texts at the ends of a line. On a narrow screen the left one is cut, because health is on the right."""
    left.truncate(max(0, width - right.cell_len - 2), overflow="ellipsis")
    gap = width - left.cell_len - right.cell_len
    line = Text.assemble(left, " " * max(2, gap), right, no_wrap=True, overflow="ellipsis")
    line.truncate(width, overflow="ellipsis")
    return line


def _bar(share: float, width: int) -> str:
    full = round(share * width)
    return "━" * full + "╌" * (width - full)


# -- tiles -----------------------------------------------------------------------------------------------------------


def _grid(xrdus: Sequence[XrduPicture], width: int, detail: Detail) -> list[Text]:
    """Return cards side by side, as many as fit."""
    tiles = max((len(rdu.cells) for x in xrdus for rdu in x.rdus), default=0)
    card = max(_MIN_CARD, _LABEL_WIDTH + tiles * _CELL_WIDTH + _PERCENT_WIDTH)
    columns = max(1, min(len(xrdus), (width + _CARD_GAP) // (card + _CARD_GAP)))
    columns = -(-len(xrdus) // -(-len(xrdus) // columns))  # as even rows as possible
    lines: list[Text] = []
    for first in range(0, len(xrdus), columns):
        cards = [_card(xrdu, card, detail) for xrdu in xrdus[first : first + columns]]
        for parts in zip(*cards, strict=True):
            line = Text(" " * _CARD_GAP).join(parts)
            line.no_wrap = True
            lines.append(line)
        if detail <= Detail.GAPS:
            lines.append(Text())
    return lines


def _card(xrdu: XrduPicture, width: int, detail: Detail) -> list[Text]:
    title = f"{xrdu.name} "
    lines = [Text(title + "─" * (width - len(title)), "dim")] if detail <= Detail.TITLES else []
    for rdu in xrdu.rdus:
        number, module = rdu.name.rpartition("_")[2], xrdu.name.rpartition("_")[2]
        label = f"RDU {number}" if detail <= Detail.TITLES else f"X{module} R{number}"
        lines.append(_fill(_tiles_line(rdu, label), width))
        if detail <= Detail.TRAFFIC:
            lines.append(_fill(_traffic_line(rdu), width))
    return lines


def _tiles_line(rdu: RduPicture, label: str) -> Text:
    line = Text.assemble((f"{label:<{_LABEL_WIDTH}}", _STATE_STYLES.get(rdu.rates.state, "")))
    for cell in rdu.cells:
        line.append_text(_cell(cell))
    if rdu.exec_percent is not None:
        line.append(f"{rdu.exec_percent:>{_PERCENT_WIDTH - 1}.0f}%", "bold" if rdu.exec_percent >= 0.5 else "dim")
    return line


def _cell(cell: TileCell) -> Text:
    letter = "·" if cell.slot is None else LETTERS[cell.slot % len(LETTERS)]
    if not cell.is_working:
        sign = "✗" if cell.slot is None else letter
        return Text.assemble((sign, "bold white on red"), ("! " if cell.slot is not None else "  ", "bold red"))
    if cell.slot is None:
        return Text.assemble((letter, "dim"), "  ")
    level = _LEVELS[min(len(_LEVELS) - 1, int(cell.busy / 100 * len(_LEVELS)))]
    return Text.assemble((letter, f"bold black on {colour(cell.slot)}"), (level, colour(cell.slot)), " ")


def _traffic_line(rdu: RduPicture) -> Text:
    rates = rdu.rates
    ddr, pcie = rates.ddr_read_bytes + rates.ddr_written_bytes, rates.pcie_rx_bytes + rates.pcie_tx_bytes
    if rates.state != "FUNCTIONAL":
        line = Text(f"{'':<{_LABEL_WIDTH}}{rates.state.lower()}", _STATE_STYLES.get(rates.state, "red"))
        return line.append(f"  ddr {rate_text(ddr)}", "dim") if ddr >= 0.5 else line
    if ddr < 0.5 and pcie < 0.5:
        return Text()
    return Text(f"{'':<{_LABEL_WIDTH}}ddr {rate_text(ddr):<9} pcie {rate_text(pcie)}", "dim")


def _fill(text: Text, width: int) -> Text:
    text.truncate(width)
    text.pad_right(width - text.cell_len)
    return text


# -- applications, faults, waiting requests --------------------------------------------------------------------------


def _occupant_lines(picture: Picture, width: int, room: int | None) -> list[RenderableType]:
    if not picture.occupants:
        return [Text("no applications", "dim")]
    most = len(picture.occupants) if room is None else max(1, room - 1)
    shown = picture.occupants
    if len(shown) > most:
        shown = shown[: max(1, most - 1)]
    is_wide, is_narrow = width >= _WIDE, width < _NARROW
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="dim", width=width)
    table.add_column("", width=1)
    table.add_column("APPLICATION", ratio=None if is_wide else 1, min_width=11, no_wrap=True, overflow="ellipsis")
    if not is_narrow:
        table.add_column("USER", max_width=12 if is_wide else 8, no_wrap=True, overflow="ellipsis")
        table.add_column("JOB", max_width=16 if is_wide else 8, no_wrap=True, overflow="ellipsis")
    for name in ("TILES", "EXEC"):
        table.add_column(name, justify="right", no_wrap=True)
    if is_wide:
        table.add_column("", width=10)
    for name in ("DDR", *(() if is_narrow else ("PCIE",)), *(("RUNS/S", "FLOP/S") if is_wide else ())):
        table.add_column(name, justify="right", no_wrap=True, min_width=8)
    table.add_column("PHASE", no_wrap=True)
    table.add_column("AGE", justify="right", no_wrap=True)
    if is_wide:
        table.add_column("COMMAND", ratio=1, no_wrap=True, overflow="ellipsis")
    for occupant in shown:
        table.add_row(*_occupant_cells(occupant, picture.time_ns, is_wide, is_narrow))
    hidden = len(picture.occupants) - len(shown)
    return [table, *([Text(f"… {hidden} more applications", "dim")] if hidden else [])]


def _occupant_cells(occupant: RunningApplication, time_ns: int, is_wide: bool, is_narrow: bool) -> list[Text]:
    holder, shade = occupant.first, colour(occupant.slot)
    failed = any(h.fault for h in occupant.holders)
    ranks = f" ×{len(occupant.holders)}" if len(occupant.holders) > 1 else ""
    age = max(0.0, time_ns / 1e9 - holder.granted_at)
    cells = [
        Text(occupant.letter, f"bold black on {shade}"),
        Text(printable(holder.application) + ranks, "bold"),
        *([] if is_narrow else [Text(printable(holder.user) or "-"), Text(printable(holder.job) or "-")]),
        Text(str(occupant.tiles)),
        Text(f"{occupant.exec_percent:.1f}%", shade),
        *([Text(_bar(occupant.exec_percent / 100, 10), shade)] if is_wide else []),
        Text(rate_text(occupant.ddr_bytes)),
        *([] if is_narrow else [Text(rate_text(occupant.pcie_bytes))]),
    ]
    if is_wide:
        cells += [Text(f"{occupant.runs:.3g}"), Text(_operations_text(occupant.flops))]
    cells += [Text("FAULT", "bold red") if failed else Text(holder.phase), Text(_age_text(age), "dim")]
    return [*cells, Text(printable(holder.command), "dim")] if is_wide else cells


def _age_text(seconds: float) -> str:
    """Return ``42s``, ``1m16s``, ``1h02m``, ``3d04h``: never wider than a table's column."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02}h"


def _operations_text(flops: float) -> str:
    return rate_text(flops).removesuffix("B/s").rstrip() if flops >= 0.5 else "-"


def _fault_lines(picture: Picture, width: int, most: int) -> list[RenderableType]:
    if not picture.faults:
        return []
    lines: list[RenderableType] = [Text(), Text("FAULTS", "dim")]
    for fault in picture.faults[:most]:
        severity = str(fault["severity"])
        age = max(0.0, (picture.time_ns - int(fault["timestamp"])) / 1e9)
        line = Text.assemble(
            (f"● {severity:<8} ", _SEVERITY_STYLES.get(severity, "red")), (without_node(fault["comp_name"]), "bold"),
            (f"  {_age_text(age)} ago  ", "dim"), printable(fault["fault_desc"]), no_wrap=True,
        )  # fmt: skip
        line.truncate(width, overflow="ellipsis")
        lines.append(line)
    hidden = len(picture.faults) - most
    return [*lines, *([Text(f"… {hidden} more; snfadm -l fault lists them", "dim")] if hidden > 0 else [])]


def _waiting_lines(picture: Picture, width: int, most: int) -> list[RenderableType]:
    if not picture.waiting:
        return []
    lines: list[RenderableType] = [Text(), Text("WAITING", "dim")]
    for place, request in enumerate(picture.waiting[:most], 1):
        age = max(0.0, picture.time_ns / 1e9 - float(request["since"]))
        line = Text.assemble(
            (f"{place}  ", "dim"), (printable(request["application"]), "bold"),
            f" wants {request['tiles']} tiles for {_age_text(age)}: ", (printable(request["reason"]), "dim"),
            no_wrap=True,
        )  # fmt: skip
        line.truncate(width, overflow="ellipsis")
        lines.append(line)
    hidden = len(picture.waiting) - most
    return [*lines, *([Text(f"… {hidden} more", "dim")] if hidden > 0 else [])]
