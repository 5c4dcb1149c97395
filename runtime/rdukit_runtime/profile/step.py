"""The breakdown of a program's time between its first run and its last, as ``snprof`` shows it.

``snprof`` starts a program with ``$RDUKIT_PROFILE_FOLDER``. Each of its processes with a session then has a
``Recorder`` and writes its sums into that folder when it ends. Without the setting there is no recorder and nothing is
timed: functions are wrapped when a PEF is loaded, not asked at each call. ``rdukit profile`` also wants each single
call: its recorder is ``rdukit_runtime.profile.timeline``'s. ``rdukit_runtime.profile.recorders`` chooses.

Every nanosecond belongs to one row: the innermost timed function that is open. The rest of the total belongs to
``SAMBA``: the program's own Python and the session's.

Source: runtime reference 6.3 (names of the rows; their meanings are ours).
"""

import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar

from rdukit.errors import InvalidArgument
from rdukit.files.atomic import write_json_atomic

if TYPE_CHECKING:
    from rdukit_runtime.application import Application

P = ParamSpec("P")
R = TypeVar("R")


class BreakdownRow(StrEnum):
    """Rows of the breakdown, in its order."""

    #: From the beginning of the first run to the end of the last run or reading of an output.
    TOTAL = "TOTAL"
    #: The rest: data loading, the program's and the session's Python.
    SAMBA = "SAMBA"
    #: Handing a run to the runtime: checks, counters, reports to the node.
    PYTHON_TO_C = "PYTHON TO C"
    #: Choosing sections and binding them to memory.
    RUN_SETUP = "RUN SETUP"
    #: Sections computing.
    RUN_HW = "RUN HW"
    #: Copies between host and device memory.
    XFER = "XFER"
    #: Run-time scalars, such as learning rates.
    ARGINS = "ARGINS"
    #: Conversions between the program's dtypes and the device's.
    CONV_FUNC = "CONV FUNC"


#: Rows by number, and the number of the current run's row.
ROWS: Final = tuple(BreakdownRow)
RUN: Final = ROWS.index(BreakdownRow.SAMBA)


@dataclass(frozen=True, slots=True)
class Breakdown:
    """Nanoseconds of each row, summed over processes."""

    nanoseconds: Mapping[BreakdownRow, int]
    runs: int
    processes: int

    def percentage(self, row: BreakdownRow) -> float:
        """Return share of the total; 0 if nothing was timed."""
        total = self.nanoseconds[BreakdownRow.TOTAL]
        return 100.0 * self.nanoseconds[row] / total if total else 0.0


class Recorder:
    """Times the wrapped functions in the thread that created it; in other threads they run untimed.

    ``clock`` returns nanoseconds that never go back.
    """

    def __init__(self, clock: Callable[[], int] = time.perf_counter_ns) -> None:
        self.runs = 0
        self._clock = clock
        self._thread = threading.get_ident()
        #: By the row's number; an enumeration's hash would cost as much as the rest of a call.
        self._nanoseconds = [0] * len(ROWS)
        #: Rows of the timed functions that are open, outermost first; empty before the first run.
        self._open: list[int] = []
        self._first: int | None = None
        #: When the innermost open row was entered or came back.
        self._since = 0
        self._last = 0

    def timed(self, row: BreakdownRow, function: Callable[P, R], name: str = "") -> Callable[P, R]:
        """Return ``function``, timed as ``row``; a function of the row ``SAMBA`` is a run, and the first run starts the
        clock.

        Args:
            name: of the call in a timeline; default: the function's.
        """
        number, called = ROWS.index(row), name or getattr(function, "__name__", str(row))

        def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
            if threading.get_ident() != self._thread or (self._first is None and number != RUN):
                return function(*args, **kwargs)
            self._enter(number)
            try:
                return function(*args, **kwargs)
            finally:
                self._leave(called)

        return wrapper

    def follow(self, application: "Application") -> None:
        """Handle the load of a PEF, before its functions are wrapped; sums need nothing of it."""

    def _enter(self, row: int) -> None:
        now = self._clock()
        if self._first is None:
            self._first = now
        if self._open:
            self._nanoseconds[self._open[-1]] += now - self._since
        self._open.append(row)
        self.runs += row == RUN
        self._since = now

    def _leave(self, called: str) -> None:
        now = self._clock()
        self._nanoseconds[self._open.pop()] += now - self._since
        self._since = self._last = now

    def breakdown(self) -> Breakdown:
        """Return the times so far. The rows after ``TOTAL`` add up to it."""
        found = dict(zip(ROWS, self._nanoseconds, strict=True))
        found[BreakdownRow.TOTAL] = 0 if self._first is None else self._last - self._first
        rest = sum(found[row] for row in BreakdownRow if row not in {BreakdownRow.TOTAL, BreakdownRow.SAMBA})
        found[BreakdownRow.SAMBA] = found[BreakdownRow.TOTAL] - rest
        return Breakdown(found, self.runs, int(self.runs > 0))

    def write(self, folder: Path) -> None:
        """Write the times to ``<pid>.json`` in ``folder``, if anything ran."""
        if self.runs:
            write_json_atomic(folder / f"{os.getpid()}.json", breakdown_to_dict(self.breakdown()))


def breakdown_to_dict(breakdown: Breakdown) -> dict[str, Any]:
    """Return plain values, for JSON; ``breakdown_from_dict`` reads them."""
    return {
        "runs": breakdown.runs,
        "processes": breakdown.processes,
        "nanoseconds": {str(row): breakdown.nanoseconds[row] for row in BreakdownRow},
    }


def breakdown_from_dict(value: Mapping[str, Any]) -> Breakdown:
    """Rebuild a ``Breakdown``.

    Raises:
        InvalidArgument: a field is missing or is not a whole number.
    """
    try:
        rows = {row: int(value["nanoseconds"][str(row)]) for row in BreakdownRow}
        return Breakdown(rows, int(value["runs"]), int(value["processes"]))
    except (KeyError, TypeError, ValueError) as cause:
        raise InvalidArgument(f"this file is not a profile: {cause!r}") from cause


def join_breakdowns(parts: Iterable[Breakdown]) -> Breakdown:
    """Return the sum over processes: a program of several ranks has several times its duration as total."""
    rows: dict[BreakdownRow, int] = dict.fromkeys(BreakdownRow, 0)
    runs = processes = 0
    for part in parts:
        rows = {row: rows[row] + part.nanoseconds[row] for row in BreakdownRow}
        runs += part.runs
        processes += part.processes
    return Breakdown(rows, runs, processes)


COLUMNS: Final = ("Breakdown", "Time in nsec", "Time in sec", "Percentage")


def breakdown_rows(breakdown: Breakdown) -> list[dict[str, object]]:
    """Return the rows of the summary, by its columns."""
    return [
        dict(
            zip(
                COLUMNS,
                (
                    str(row), breakdown.nanoseconds[row], round(breakdown.nanoseconds[row] / 1e9, 9),
                    round(breakdown.percentage(row), 2),
                ),
                strict=True,
            )
        )
        for row in BreakdownRow
    ]  # fmt: skip
