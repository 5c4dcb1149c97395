"""Reports of a compile: lines in the vendor's grammar (compiler reference 1.5), progress, and the files next to a PEF.

The output of ``RDUKIT_DEBUG`` is here, too.

Names of the files are the vendor's (compiler reference 1.7, SDK reference 21); contents are ours, since those are not
public. All figures are projections for the emulated chip.
"""

import json
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from math import ceil
from types import TracebackType
from typing import TYPE_CHECKING, Final, Protocol

from rdukit.hardware import ChipSpec
from rdukit.pef.debug import describe_call
from rdukit.pef.model import Section
from rdukit_compiler.cost import StageCost
from rdukit_compiler.ir import ModelGraph, Value, ValueKind
from rdukit_compiler.passes.cut_sections import SectionPlan

if TYPE_CHECKING:  # most compiles run without a terminal
    from rich.progress import Progress

#: Redraws of a terminal per second: drawing costs more than a section of a small model.
REDRAWN_HZ: Final = 5


class Reporter(Protocol):
    """Receiver of a compile's reports."""

    def info(self, text: str) -> None:
        """Report one line for the user's terminal and log."""

    def warning(self, text: str) -> None:
        """Report something that the user should act on."""

    def phase(self, name: str) -> None:
        """Report the start of a phase without a count."""

    def progress(self, what: str, done: int, total: int) -> None:
        """Report how many of ``what`` (sections, kernels) are ready. May be called from any thread."""


class ConsoleReporter:
    """Prints ``[info    ]: …`` to stdout and, in a terminal, progress to stderr; keeps all lines.

    The progress line has the phase, the number of ready sections or kernels, and the time since it began. Use it as
    ``with ConsoleReporter() as reporter:``, which restores the terminal however the compile ends.

    ``follow`` also gets each phase and count, as (what, done, total), with 0 of 0 for a phase without a count. It may
    be called from any thread.
    """

    def __init__(self, quiet: bool = False, follow: Callable[[str, int, int], None] | None = None) -> None:
        self._quiet = quiet
        self._follow = follow
        self._bars: Progress | None = None
        self._shown = ""
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

    def phase(self, name: str) -> None:
        self._show(name, 0, 0)

    def progress(self, what: str, done: int, total: int) -> None:
        self._show(what, done, total)

    def _show(self, what: str, done: int, total: int) -> None:
        """Show one line in the terminal; 0 of 0 means a phase without a count; a full count ends the line."""
        if self._follow is not None:
            self._follow(what, done, total)
        if self._quiet or not sys.stderr.isatty():
            return
        with self._lock:
            count = f"{done}/{total}" if total else ""
            if self._bars is None or what != self._shown:
                self._stop()
                self._bars, self._shown = _new_bars(), what
                self._bars.add_task(what, total=total or None, completed=done, count=count)
                self._bars.start()
            self._bars.update(self._bars.task_ids[0], completed=done, count=count)
            if total and done >= total:
                self._stop()

    def _stop(self) -> None:
        if self._bars is not None:
            self._bars.stop()
        self._bars = None

    def _say(self, line: str) -> None:
        self.lines.append(line)
        if not self._quiet:
            print(line, flush=True)


def _new_bars() -> "Progress":
    """Return temporary progress bars on stderr; output to a terminal appears above them meanwhile.

    Redirected output is not captured: rich would print it to stderr.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    return Progress(
        TextColumn("  compiling: {task.description}"), BarColumn(), TextColumn("{task.fields[count]}"),
        TimeElapsedColumn(), console=Console(stderr=True), transient=True, refresh_per_second=REDRAWN_HZ,
        redirect_stdout=sys.stdout.isatty(),
    )  # fmt: skip


def projection_line(sections: Sequence[Section]) -> str:
    """Return the line of amortised resources, weighted by projected time; figures are projected, never measured."""
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
    """Describe the sections, a line each: operators, the rule or heuristic that chose it, and why it ends there."""
    return "".join(
        f"{plan.name}\trule={plan.rule or '-'}\theuristic={plan.heuristic}\t"
        f"operators={','.join(plan.operators)}\t{plan.why}\n"
        for plan in plans
    )


def describe_graph(graph: ModelGraph) -> str:
    """Describe a graph, a line each: its inputs, its operators in order with their results, and its outputs."""
    lines = [f"{_described(v)}  {v.kind}" for v in graph.values.values() if v.kind is not ValueKind.OPERATOR]
    for operator in graph.operators:
        made = ", ".join(_described(graph.values[name]) for name in operator.outputs)
        notes = [f"in {operator.module}"] if operator.module else []
        if operator.compute is not None:
            notes.append(f"computes in {' then '.join(operator.compute.operands)}")
        notes += [f"{label} {word}" for label, word in operator.labels.items()]
        call = describe_call(operator.op, operator.args, operator.kwargs)
        lines.append(f"{made} = {call}" + (f"  # {', '.join(notes)}" if notes else ""))
    lines += [f"{buffer} <- {name}" for buffer, name in graph.updates.items()]
    return "\n".join([*lines, f"return {', '.join(graph.outputs)}"])


def describe_choices(plans: Sequence[SectionPlan]) -> str:
    """Describe the decisions of each section's heuristic, a line each, with the parameters of its rule."""
    rows = [(plan.name, plan.heuristic, {**plan.parameters, **plan.decisions}) for plan in plans]
    return "\n".join(f"{name}\t{heuristic}\t{json.dumps(made, default=str)}" for name, heuristic, made in rows)


def _described(value: Value) -> str:
    return f"{value.name}: {value.dtype}{list(value.shape)}{' grad' if value.requires_grad else ''}"


#: Stages of sections, by section id: operators with their projections.
Stages = Mapping[int, Sequence[tuple[str, StageCost]]]


def artifact_files(name: str, sections: Sequence[Section], chip: ChipSpec, stages: Stages) -> dict[str, bytes]:
    """Return path relative to the PEF's folder → contents, for the PEF called ``name``."""
    found = {
        "mac_gen/stages.json": stages_json(stages, chip),
        f"{name}.mac.log": mapper_log(sections, chip),
        "mac_gen/mac_resources.json": resources_json(sections, chip),
        **{f"{name}.s{s.id}.utilization_report.txt": utilization_report(s, chip) for s in sections},
    }
    listed = sorted([*found, f"{name}.pef", f"{name}.samba.log", f"{name}.configs", f"{name}.sections.txt"])
    found[f"{name}_artifacts_list.txt"] = "".join(path + "\n" for path in listed)
    return {path: text.encode() for path, text in found.items()}


def mapper_log(sections: Sequence[Section], chip: ChipSpec) -> str:
    """Return the vendor's mapper log, a line each: the sections with rule, heuristic, units and reason, and their
    success.
    """
    lines = ["[info    ]: Legalizing node resources..."]
    for s in sections:
        used = s.resources
        lines.append(
            f"[info    ]: section {s.id} {s.name} type={s.type} rule={s.rule or '-'} heuristic={s.heuristic} "
            f"pcus={used.pcus}/{used.tiles * chip.pcus_per_tile} pmus={used.pmus}/{used.tiles * chip.pmus_per_tile} "
            f"projected={s.cost.seconds:.3e} s: {s.why}"
        )
    lines += [f"[info    ]: Compilation succeeded for partition_{s.id}_0_" for s in sections]
    return "".join(line + "\n" for line in (*lines, "[info    ]: Mac Compilation succeeded."))


def resources_json(sections: Iterable[Section], chip: ChipSpec) -> str:
    """Write resources and projected cost of every section as JSON."""
    rows = [
        {
            "section_id": s.id, "name": s.name, "type": s.type.value, "operators": list(s.operators), "rule": s.rule,
            "heuristic": s.heuristic, "resources": asdict(s.resources), "projected": asdict(s.cost),
        }
        for s in sections
    ]  # fmt: skip
    tile = {"pcus": chip.pcus_per_tile, "pmus": chip.pmus_per_tile, "pmu_bytes": chip.pmu_bytes}
    return json.dumps({"arch": chip.name, "tile": tile, "sections": rows}, indent=1) + "\n"


def stages_json(stages: Stages, chip: ChipSpec) -> str:
    """Write the projected stages of each section as JSON: cycles of a whole batch at the chip's clock. Ours."""
    rows = [
        {
            "section_id": section,
            "stages": [
                {"operator": operator, "cycles": ceil(stage.cycles), "pcus": stage.pcus,
                 "compute_cycles": ceil(stage.load / stage.pcus) if stage.pcus else 0,
                 "memory_cycles": ceil(stage.memory_cycles)}
                for operator, stage in found
            ],
        }
        for section, found in sorted(stages.items())
    ]  # fmt: skip
    return json.dumps({"arch": chip.name, "clock_hz": chip.clock_hz, "sections": rows}, indent=1) + "\n"


def utilization_report(section: Section, chip: ChipSpec) -> str:
    """Report units of one section, used and available, with percentages."""
    used = section.resources
    rows = (
        ("tiles", used.tiles, chip.tiles),
        ("PCU", used.pcus, used.tiles * chip.pcus_per_tile),
        ("PMU", used.pmus, used.tiles * chip.pmus_per_tile),
        ("SRAM bytes", used.sram_bytes, used.tiles * chip.pmus_per_tile * chip.pmu_bytes),
    )
    lines = [f"partition_{section.id}_0_  section {section.name}  {section.type}  {chip.name}  (projected)"]
    lines.append(f"{'unit':<12}{'used':>14}{'available':>14}{'utilization':>13}")
    lines += [f"{unit:<12}{taken:>14}{have:>14}{100 * taken / max(have, 1):>12.1f}%" for unit, taken, have in rows]
    return "".join(line + "\n" for line in lines)
