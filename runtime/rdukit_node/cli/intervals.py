"""The common part of sntilestat, snddrstat and snpciestat: options, sampling, columns, tables and output.

The first sample covers a short window, so that a bare call answers at once; later ones cover the interval.

Source: runtime reference 6.1 (``--skip-idle -i -T --count``, filters by user and process, CSV), 6.2; the spelling of
filters, ``--csv``, ``--job``, ``--json``, the live mode and the columns of snddrstat and snpciestat are ours.
"""

import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TextIO

import click

from rdukit.errors import InvalidArgument
from rdukit_node.cli.output import connect, csv_text, is_terminal, json_line, node_options, time_text
from rdukit_node.telemetry.sampling import Reading, TileHolder, take_reading, window_ns
from rdukit_node.telemetry.traffic import Traffic, spread_traffic

#: Seconds between samples, and of the first one's window.
DEFAULT_INTERVAL_S: Final = 5.0
FIRST_WINDOW_S: Final = 0.5
_MAX_S: Final = 86_400.0
_COMMAND_WIDTH: Final = 50


@dataclass(frozen=True, slots=True)
class StatisticsOptions:
    """Options of the three tools."""

    interval_s: float | None = None
    count: int | None = None
    has_timestamps: bool = False
    skip_idle: bool = False
    user: str | None = None
    pid: int | None = None
    job: str | None = None
    #: ``-`` for stdout.
    csv_file: str | None = None
    as_json: bool = False
    socket: Path | None = None

    @property
    def has_filter(self) -> bool:
        """True if only some holders are wanted."""
        return self.user is not None or self.pid is not None or self.job is not None

    def wants(self, holder: TileHolder | None) -> bool:
        """Return whether rows of this holder (``None``: no holder) are wanted."""
        if holder is None:
            return not self.has_filter
        return (
            (self.user is None or holder.user == self.user)
            and (self.pid is None or self.pid in (holder.pid, *holder.pids))
            and (self.job is None or holder.job == self.job)
        )


@dataclass(frozen=True, slots=True)
class SamplingPlan:
    """Times of the samples. ``count``: ``None`` means until Ctrl-C."""

    first_window_s: float
    interval_s: float
    count: int | None
    #: Whether to redraw one screen instead of printing successive samples.
    is_live: bool


@dataclass(frozen=True, slots=True)
class StatisticsTool:
    """A table of an interval tool: pure functions from two readings to the output."""

    name: str
    has_components: bool
    #: Columns of the comma-separated form.
    columns: tuple[str, ...]
    #: Key of the list of rows in the JSON document.
    key: str
    rows: Callable[[Reading, Reading, StatisticsOptions], list[dict[str, Any]]]
    lines: Callable[[Sequence[Mapping[str, Any]]], list[str]]


def statistics_options(command: Callable[..., None]) -> Callable[..., None]:
    """Return the options that all three have; the command gets them by the names of ``StatisticsOptions``."""
    for option in reversed(
        [
            click.option("-i", "interval_s", type=float, metavar="SEC", help="Seconds between samples (default 5)."),
            click.option(
                "--count",
                type=click.IntRange(min=0),
                metavar="N",
                help="Samples to show (default 1; in a terminal with -i: until Ctrl-C). 0: until Ctrl-C.",
            ),
            click.option("-T", "has_timestamps", is_flag=True, help="Show the time of each sample."),
            click.option("--skip-idle", is_flag=True, help="Show only RDUs in use."),
            click.option("-u", "user", metavar="USER", help="Show only resources of this user."),
            click.option("-p", "pid", type=int, metavar="PID", help="Show only resources of this process."),
            click.option("--job", metavar="ID", help="Show only resources of this job."),
            click.option(
                "--csv",
                "csv_file",
                is_flag=False,
                flag_value="-",
                default=None,
                metavar="[FILE]",
                help="Print comma-separated values, or write them to a named file.",
            ),
            click.option(
                "--json", "as_json", is_flag=True, help="Print one JSON document per sample, each on one line."
            ),
            node_options,
        ]
    ):
        command = option(command)
    return command


def make_plan(options: StatisticsOptions, stdout_is_terminal: bool) -> SamplingPlan:
    """Decide when to sample and whether to redraw.

    Raises:
        InvalidArgument: an interval that is not a duration, or two output formats.
    """
    interval = DEFAULT_INTERVAL_S if options.interval_s is None else options.interval_s
    if not 0.01 <= interval <= _MAX_S:
        raise InvalidArgument(f"-i {interval}: expected 0.01 to {_MAX_S:.0f} seconds")
    if options.as_json and options.csv_file == "-":
        raise InvalidArgument("--json and --csv both write to stdout; name a file for --csv, or use one of them")
    is_for_people = stdout_is_terminal and not options.as_json and options.csv_file is None
    count = options.count
    if count is None:
        count = 0 if is_for_people and options.interval_s is not None else 1
    one_shot_window = interval if options.interval_s is not None else FIRST_WINDOW_S
    return SamplingPlan(
        first_window_s=one_shot_window if count == 1 else min(interval, FIRST_WINDOW_S),
        interval_s=interval,
        count=count or None,
        is_live=is_for_people and count != 1,
    )


def document(
    tool: StatisticsTool, before: Reading, after: Reading, rows: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return a sample for machines."""
    return {
        "tool": tool.name,
        "node": after.status["node"],
        "platform": after.status["platform"],
        "time_ns": after.time_ns,
        "window_s": window_ns(before, after) / 1e9,
        tool.key: list(rows),
    }


def holder_fields(holder: TileHolder | None) -> dict[str, Any]:
    """Return the columns of a lease's holder; all ``None`` without a holder."""
    return {
        "pid": None if holder is None else holder.pid,
        "user": None if holder is None else holder.user,
        "command": None if holder is None else holder.command,
        "application": None if holder is None else holder.application,
        "tenant": None if holder is None else holder.tenant,
        "job": None if holder is None else holder.job,
        "lease": None if holder is None else holder.lease,
        "phase": None if holder is None else holder.phase,
        "fault": None if holder is None else holder.fault,
    }


@dataclass(frozen=True, slots=True)
class WhoColumns:
    """The columns PID, USER and COMMAND at a table's end, wide enough for all rows."""

    pid_width: int = 6
    user_width: int = 8

    @classmethod
    def of(cls, rows: Sequence[Mapping[str, Any]]) -> "WhoColumns":
        """Widths for these rows; at least those of the vendor's tool."""
        pids = [len(str(row["pid"])) for row in rows if row["pid"] is not None]
        users = [len(printable(row["user"])) for row in rows if row["user"]]
        return cls(max([6, *pids]), max([8, *users]))

    def head(self) -> str:
        """Return the holders' part of the header."""
        return f" {'PID':>{self.pid_width}} {'USER':>{self.user_width}} COMMAND"

    def cells(self, row: Mapping[str, Any]) -> str:
        """Return the holder's part of a row: empty without a holder. A health other than ``Online`` precedes the
        command.
        """
        is_well = row["health"] == "Online" and not row["fault"]
        mark = "" if is_well else f"[{row['health'] if row['health'] != 'Online' else 'Fault'}] "
        if row["lease"] is None:
            return f" {'':>{self.pid_width}} {'':>{self.user_width}} {mark}".rstrip()
        pid = "-" if row["pid"] is None else str(row["pid"])
        command = (mark + printable(row["command"]))[:_COMMAND_WIDTH].rstrip()
        return f" {pid:>{self.pid_width}} {printable(row['user']) or '-':>{self.user_width}} {command}"


def printable(text: object) -> str:
    """Return another user's text without terminal control characters."""
    return "".join(letter if letter.isprintable() else "?" for letter in str(text or ""))


def without_node(path: str) -> str:
    """Return ``/XRDU_0/…`` of ``/NODE/XRDU_0/…``. Source: runtime reference 1.1: these tools leave the node out."""
    return path.removeprefix("/NODE")


def fit_lines(lines: Sequence[str], width: int, height: int, what: str) -> list[str]:
    """Cut lines to a screen's height, with the number of missing ones."""
    cut = [line[:width] for line in lines]
    if len(cut) <= height:
        return cut
    missing = len(cut) - height + 1
    return [*cut[: height - 1], f"… {missing} more {what}; enlarge the window or pass --skip-idle to see them"[:width]]


def run_tool(tool: StatisticsTool, options: StatisticsOptions) -> None:
    """Sample and print, as often as requested.

    Raises:
        Unavailable: no daemon answers, or it ended.
    """
    plan = make_plan(options, is_terminal())
    try:
        if plan.is_live:
            _redraw(tool, options, plan)
        else:
            _print_all(tool, options, plan)
    except KeyboardInterrupt:
        if plan.count is None:  # Ctrl-C is the only way to end it
            return
        raise


def _samples(tool: StatisticsTool, options: StatisticsOptions, plan: SamplingPlan) -> Iterator[tuple[Reading, Reading]]:
    with connect(options.socket) as node:
        before = take_reading(node, tool.has_components)
        taken = 0
        due = time.monotonic()
        while plan.count is None or taken < plan.count:
            due += plan.first_window_s if taken == 0 else plan.interval_s
            time.sleep(max(0.0, due - time.monotonic()))
            after = take_reading(node, tool.has_components)
            yield before, after
            before = after
            taken += 1


def _print_all(tool: StatisticsTool, options: StatisticsOptions, plan: SamplingPlan) -> None:
    with ExitStack() as stack:
        # The file grows line by line while the tool runs, so it is not written atomically.
        file = None
        if options.csv_file not in (None, "-"):
            file = stack.enter_context(_open_for_writing(Path(str(options.csv_file))))
        for number, (before, after) in enumerate(_samples(tool, options, plan)):
            rows = tool.rows(before, after, options)
            if options.csv_file is not None:
                stamped = [{"time": time_text(after.time_ns), **row} for row in rows]
                text = csv_text(("time", *tool.columns), stamped, has_header=number == 0)
                if text:
                    _write(text, file or sys.stdout)
            if options.as_json:
                _write(json_line(document(tool, before, after, rows)), sys.stdout)
            elif options.csv_file is None:
                head = [""] if number else []
                head += [time_text(after.time_ns)] if options.has_timestamps else []
                _write("\n".join([*head, *tool.lines(rows)]), sys.stdout)


def _open_for_writing(path: Path) -> TextIO:
    try:
        return path.open("w")
    except OSError as cause:
        raise InvalidArgument(f"--csv {path}: the file cannot be written: {cause.strerror}") from cause


def _write(text: str, stream: TextIO) -> None:
    stream.write(text + "\n")
    stream.flush()


def _redraw(tool: StatisticsTool, options: StatisticsOptions, plan: SamplingPlan) -> None:
    from rich.console import Console  # only the live mode needs it
    from rich.live import Live
    from rich.text import Text

    console = Console(highlight=False)
    shown: list[str] = [f"{tool.name}: first sample in {plan.first_window_s:g} s"]

    def frame() -> Text:
        lines = fit_lines(shown, console.width, console.height, tool.key)
        return Text("\n".join(lines), no_wrap=True, overflow="crop")

    # Without this a SIGTERM would leave the terminal on its alternate screen.
    former = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        with Live(get_renderable=frame, console=console, screen=True, vertical_overflow="crop"):
            for before, after in _samples(tool, options, plan):
                stamp = f"{after.status['node']} ({after.status['platform']})  {time_text(after.time_ns)}"
                shown = [stamp, "", *tool.lines(tool.rows(before, after, options))]
    finally:
        signal.signal(signal.SIGTERM, former)
    if plan.count is not None:  # the alternate screen with the last sample is gone
        sys.stdout.write("\n".join(shown) + "\n")


_PATH_WIDTH: Final = 22
_WHO: Final = ("pid", "user", "command", "application", "tenant", "job", "phase", "health")


@dataclass(frozen=True, slots=True)
class Column:
    """A figure of a row: its name for machines, and for people a head, a width and decimals; no head: not shown."""

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

    def rows(self, before: Reading, after: Reading, options: StatisticsOptions) -> list[dict[str, Any]]:
        """Return a row per component and lease that uses it, filtered by the options."""
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
        """Return the header, and a line per row."""
        who = WhoColumns.of(rows)
        shown = [column for column in self.columns if column.head]
        heads = [f"{column.head:>{column.width}}" for column in shown]
        lines = [f"{self.kind:<{_PATH_WIDTH}} {' '.join(heads)}{who.head()}"]
        for row in rows:
            cells = [f"{row[column.name]:>{column.width}.{column.decimals}f}" for column in shown]
            lines.append(f"{row[self.kind.lower()]:<{_PATH_WIDTH}} {' '.join(cells)}{who.cells(row)}")
        return lines

    def tool(self, name: str, key: str) -> StatisticsTool:
        """Return the tool of this table. ``key``: key of the list of rows in the JSON document."""
        return StatisticsTool(
            name=name,
            has_components=True,
            columns=(self.kind.lower(), *(column.name for column in self.columns), *_WHO),
            key=key,
            rows=self.rows,
            lines=self.lines,
        )


def wanted_traffic(rows: Sequence[Traffic], options: StatisticsOptions) -> list[Traffic]:
    """Return rows that pass the filters; with ``--skip-idle`` only those of RDUs with a lease or moved bytes."""
    active = {row.rdu for row in rows if row.holder is not None or row.in_bytes or row.out_bytes}
    return [row for row in rows if options.wants(row.holder) and (row.rdu in active or not options.skip_idle)]
