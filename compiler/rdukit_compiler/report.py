"""What a compile says: lines in the vendor's grammar (compiler reference 1.5), and progress for people."""

import sys
import threading
import time
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Final, Protocol

from rdukit.pef.model import Section
from rdukit_compiler.passes.cut_sections import SectionPlan

if TYPE_CHECKING:  # most compiles have no terminal
    from rich.progress import Progress, TaskID

#: A bar is drawn again after so long at the earliest: drawing costs more than a section of a small model.
REDRAW_S: Final = 0.1


class Reporter(Protocol):
    """Where a compile reports to."""

    def info(self, text: str) -> None:
        """One line for the user's terminal and log."""

    def warning(self, text: str) -> None:
        """Something that the user should act on."""

    def progress(self, what: str, done: int, total: int) -> None:
        """How many of ``what`` (sections, kernels) are ready. May come from any thread."""


class SilentReporter:
    """Says nothing."""

    def info(self, text: str) -> None:
        pass

    def warning(self, text: str) -> None:
        pass

    def progress(self, what: str, done: int, total: int) -> None:
        pass


class ConsoleReporter:
    """Prints ``[info    ]: …`` to stdout and, in a terminal, progress bars on stderr; keeps all lines.

    A bar is there while something of its kind is missing. Used as ``with ConsoleReporter() as reporter:``, so that the
    terminal is as before however the compile ends.
    """

    def __init__(self, quiet: bool = False) -> None:
        self._quiet = quiet
        self._bars: Progress | None = None
        self._tasks: dict[str, TaskID] = {}
        self._drawn = 0.0
        self._lock = threading.Lock()
        self.lines: list[str] = []

    def __enter__(self) -> "ConsoleReporter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._stop()

    def info(self, text: str) -> None:
        self._say(f"[info    ]: {text}")

    def warning(self, text: str) -> None:
        self._say(f"[warning Samba]: {text}")

    def progress(self, what: str, done: int, total: int) -> None:
        if self._quiet or not sys.stderr.isatty():
            return
        with self._lock:
            if self._bars is None:
                self._bars = _new_bars()
                self._bars.start()
            if what not in self._tasks:
                self._tasks[what] = self._bars.add_task(what, total=total)
            self._bars.update(self._tasks[what], completed=done, total=total)
            if done >= total:
                self._stop()
            elif time.monotonic() - self._drawn > REDRAW_S:
                self._bars.refresh()
                self._drawn = time.monotonic()

    def _stop(self) -> None:
        if self._bars is not None:
            self._bars.stop()
        self._bars = None
        self._tasks.clear()

    def _say(self, line: str) -> None:
        self.lines.append(line)
        if not self._quiet:
            print(line, flush=True)


def _new_bars() -> "Progress":
    """Bars on stderr that leave nothing behind; what is printed meanwhile appears above them."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    return Progress(
        TextColumn("  compiling {task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        console=Console(stderr=True), transient=True, auto_refresh=False,
    )  # fmt: skip


def projection_line(sections: Sequence[Section]) -> str:
    """The line of amortised resources, weighted by projected time; figures are the cost model's, never measured."""
    seconds = sum(section.cost.seconds for section in sections)
    weight = seconds or 1.0
    pcus = sum(section.resources.pcus * section.cost.seconds for section in sections) / weight
    pmus = sum(section.resources.pmus * section.cost.seconds for section in sections) / weight
    flops = sum(section.cost.flops for section in sections) / weight
    moved = sum(s.cost.bytes_in + s.cost.bytes_out + s.cost.bytes_weights for s in sections) / weight
    return (
        f"Amortized resources overall: {pcus:.2e} PCUs, {pmus:.2e} PMUs, projected latency: {seconds:.2e} s, "
        f"FLOPS: {flops / 1e12:.1e} T/s, DDR_BW: {moved / 1e9:.1e} GB/s"
    )


def describe_plans(plans: Sequence[SectionPlan]) -> str:
    """One line a section: its operators, the rule or heuristic that made it, and why it ends there."""
    return "".join(
        f"{plan.name}\trule={plan.rule or '-'}\theuristic={plan.heuristic}\t"
        f"operators={','.join(plan.operators)}\t{plan.why}\n"
        for plan in plans
    )
