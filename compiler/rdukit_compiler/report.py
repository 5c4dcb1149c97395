"""What a compile says: lines in the vendor's grammar (compiler reference 1.5), and progress for people."""

import sys
from collections.abc import Sequence
from typing import Protocol

from rdukit.pef.model import Section
from rdukit_compiler.passes.cut_sections import SectionPlan


class Reporter(Protocol):
    """Where a compile reports to."""

    def info(self, text: str) -> None:
        """One line for the user's terminal and log."""

    def warning(self, text: str) -> None:
        """Something that the user should act on."""

    def progress(self, done: int, total: int, label: str) -> None:
        """How many native kernels are ready."""


class SilentReporter:
    """Says nothing."""

    def info(self, text: str) -> None:
        pass

    def warning(self, text: str) -> None:
        pass

    def progress(self, done: int, total: int, label: str) -> None:
        pass


class ConsoleReporter:
    """Prints ``[info    ]: …`` to stdout and, in a terminal, a progress bar on stderr; keeps all lines."""

    def __init__(self, quiet: bool = False) -> None:
        self._quiet = quiet
        self.lines: list[str] = []

    def info(self, text: str) -> None:
        self._say(f"[info    ]: {text}")

    def warning(self, text: str) -> None:
        self._say(f"[warning Samba]: {text}")

    def progress(self, done: int, total: int, label: str) -> None:
        if not self._quiet and sys.stderr.isatty():
            filled = 30 * done // max(total, 1)
            bar = "█" * filled + "░" * (30 - filled)
            print(f"\r  kernels {bar} {done}/{total} {label}", end="\n" if done == total else "", file=sys.stderr)

    def _say(self, line: str) -> None:
        self.lines.append(line)
        if not self._quiet:
            print(line, flush=True)


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
