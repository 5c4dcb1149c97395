"""Recording of single calls in a profiled process: what ``rdukit profile`` draws.

The calls are those that ``snprof`` adds up. Each call has its times and the Python lines that led to it; each run also
has its sections. Names, lines and times are recorded, but never values of tensors.

A process keeps its first ``most`` calls and sections. Later ones are added up by section, and counted. All times are of
``CLOCK_MONOTONIC``, which all processes of a machine share: ranks need no alignment.

Source: ours.
"""

import json
import os
import sys
import time
from array import array
from collections.abc import Callable, Mapping
from pathlib import Path
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, Final

from rdukit.files.atomic import write_unflushed
from rdukit.pef.memory import plan_memory
from rdukit.pef.model import Pef
from rdukit_runtime.engine.native_run import SectionTimes
from rdukit_runtime.engine.program_lines import is_of_program
from rdukit_runtime.profile.step import ROWS, RUN, BreakdownRow, Recorder

if TYPE_CHECKING:
    from rdukit_runtime.application import Application

#: Version of a process's file; it changes with the meaning of a field.
SCHEMA: Final = 1
#: Numbers that a call has in ``calls``: row, name, begin and end in ns, stack (-1: an inner call), PEF, first section
#: in ``sections``, sections.
CALL_FIELDS: Final = 8
#: Python lines of a stack, the innermost ones, and frames that are examined for them.
_MOST_LINES: Final = 12
_MOST_FRAMES: Final = 60
#: Time between two readings of the process's memory, ns.
_MEMORY_EVERY_NS: Final = 10_000_000
_COMPUTING: Final = ROWS.index(BreakdownRow.RUN_HW)

#: A line of Python: file, number, function.
Line = tuple[str, int, str]


class TimelineRecorder(Recorder):
    """A recorder that also keeps each call.

    Args:
        most: calls and sections to keep. clock: nanoseconds that never go back.
    """

    def __init__(self, most: int, clock: Callable[[], int] = time.perf_counter_ns) -> None:
        super().__init__(clock)
        #: Remaining number of calls and sections to keep; 0 after the first dropped one: a timeline has no holes.
        self._room = most
        #: ``CALL_FIELDS`` numbers a call, and sections of runs: flat, since Python's garbage collector would visit
        #: millions of tuples again and again.
        self._calls: list[int] = []
        self._sections = SectionTimes()
        #: Sections whose run is noted.
        self._noted = 0
        #: Names of calls by number.
        self._names: dict[str, int] = {}
        #: Begin and stack of each open call, outermost first.
        self._begun: list[tuple[int, int]] = []
        #: Stacks by their (number of code, line)s, and code seen so far by its identity: to hash code takes long.
        self._stacks: dict[tuple[tuple[int, int], ...], int] = {}
        self._codes: dict[int, CodeType] = {}
        self._is_of_program: dict[int, bool] = {}
        self._pefs: list[Pef] = []
        self._forms: list[frozenset[str]] = []
        #: For each PEF: its file, threads and device.
        self._loaded: list[dict[str, Any]] = []
        #: Calls that were not kept; of their sections, by (PEF, section): runs and nanoseconds.
        self._dropped = 0
        self._dropped_sections: dict[tuple[int, int], list[int]] = {}
        self._memory = array("q")
        self._memory_next_ns = 0
        self._statm = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)

    def follow(self, application: "Application") -> None:
        """Record the sections of a loaded PEF's runs from now on."""
        self._pefs.append(application.pef)
        self._forms.append(application.native_digests)
        program = application.program
        self._loaded.append(
            {
                "path": os.path.abspath(application.path),
                "threads": application.threads,
                "device": str(program.device),
                "kernels": application.kernels_told,
            }
        )
        run = program.run

        def run_measured(graph: Any, sections: tuple[int, ...], scalars: Mapping[str, float]) -> None:
            theirs, own = program.section_seconds, self._sections
            own.cut(self._noted)  # those of a run that failed
            before = 0 if theirs is None else len(theirs)
            program.section_seconds = own if theirs is None else theirs
            try:
                run(graph, sections, scalars)
            finally:
                program.section_seconds = theirs
                for pair in () if theirs is None else theirs[before:]:
                    own.append(pair)

        run_measured.__name__ = "run"
        program.run = run_measured  # type: ignore[method-assign]

    def _enter(self, row: int) -> None:  # as the parent's, in one call: each costs as much as its work
        if self._open:
            stack, now = -1, self._clock()
            self._nanoseconds[self._open[-1]] += now - self._since
        else:
            stack, now = self._stack_of(sys._getframe(2)), self._clock()
            if self._first is None:
                self._first = now
        self._open.append(row)
        self.runs += row == RUN
        self._since = now
        self._begun.append((now, stack))

    def _leave(self, called: str) -> None:
        end, row = self._clock(), self._open.pop()
        self._nanoseconds[row] += end - self._since
        self._since = self._last = end
        begin, stack = self._begun.pop()
        first, count = self._noted, 0
        if row == _COMPUTING:
            count = len(self._sections.ids) - first
        self._room -= 1 + count
        if self._room < 0:
            self._drop()
            return
        self._noted += count
        name = self._names.setdefault(called, len(self._names))
        self._calls += (row, name, begin, end, stack, len(self._pefs) - 1, first, count)
        if end > self._memory_next_ns:
            self._memory_next_ns = end + _MEMORY_EVERY_NS
            self._memory.extend((end, int(os.pread(self._statm, 80, 0).split()[1]) * _PAGE))

    def _drop(self) -> None:
        self._room = 0
        self._dropped += 1
        own, first = self._sections, self._noted
        for section, taken in zip(own.ids[first:], own.ns[first:], strict=True):
            total = self._dropped_sections.setdefault((len(self._pefs) - 1, section), [0, 0])
            total[0] += 1
            total[1] += taken
        own.cut(first)

    def _stack_of(self, frame: FrameType | None) -> int:
        """Return the number of the program's lines that led here, without ours."""
        found: list[tuple[int, int]] = []
        known = self._is_of_program
        for _ in range(_MOST_FRAMES):
            if frame is None or len(found) == _MOST_LINES:
                break
            number = id(frame.f_code)
            is_shown = known.get(number)
            if is_shown is None:
                self._codes[number] = frame.f_code  # kept, so that its identity stays its own
                is_shown = known[number] = is_of_program(frame)
            if is_shown:
                found.append((number, frame.f_lineno))
            frame = frame.f_back
        return self._stacks.setdefault(tuple(found), len(self._stacks))

    def write(self, folder: Path) -> None:
        """Write sums as any recorder, and the calls to ``<pid>.timeline``, if anything ran."""
        super().write(folder)
        if self.runs:
            text = json.dumps(self.to_dict(self._clock()), separators=(",", ":"))
            write_unflushed(folder / f"{os.getpid()}.timeline", text.encode())

    def to_dict(self, ended_ns: int) -> dict[str, Any]:
        """Return plain values, for JSON; ``rdukit_runtime.profile.recording`` reads them."""
        return {
            "schema": SCHEMA,
            "pid": os.getpid(),
            "rank": _rank(),
            "started_ns": process_started_ns(),
            "ended_ns": ended_ns,
            "rows": [str(row) for row in ROWS],
            "names": list(self._names),
            "stacks": [[_line_of(self._codes[code], line) for code, line in stack] for stack in self._stacks],
            "calls": self._calls,
            "sections": [self._sections.ids[: self._noted].tolist(), self._sections.ns[: self._noted].tolist()],
            "pefs": [
                {**pef_to_dict(pef, native), **loaded}
                for pef, native, loaded in zip(self._pefs, self._forms, self._loaded, strict=True)
            ],
            "memory": self._memory.tolist(),
            "dropped": self._dropped,
            "dropped_sections": [[*key, *total] for key, total in self._dropped_sections.items()],
        }


_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


def pef_to_dict(pef: Pef, native: frozenset[str]) -> dict[str, Any]:
    """Return the timeline's data of a PEF's sections, and the device memory planned during each."""
    planned: dict[int, int] = {}
    for graph in pef.graphs.values():
        plan = plan_memory(pef, graph)
        planned.update({moment.section: plan.persistent_bytes + moment.during_bytes for moment in plan.moments})
    return {
        "name": pef.name,
        "arch": pef.arch,
        "mode": pef.mode,
        "sections": [
            {
                "id": s.id,
                "name": s.name,
                "type": s.type.value,
                "graph": s.graph,
                "kernel": s.kernel,
                "form": "native" if s.kernel in native else "portable",
                "rule": s.rule,
                "operators": list(s.operators),
                "emulated_ns": round(s.cost.seconds * 1e9),
                "flops": s.cost.flops,
                "bytes": s.cost.bytes_in + s.cost.bytes_weights + s.cost.bytes_out,
                "device_bytes": planned.get(s.id, 0),
            }
            for s in pef.sections
        ],
    }


def process_started_ns() -> int:
    """Return when this process was started, ns of ``CLOCK_MONOTONIC``, to a hundredth of a second."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    since_boot = int(fields[19]) * 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    asleep = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    return since_boot - asleep


def _rank() -> int:
    from torch import distributed

    return distributed.get_rank() if distributed.is_available() and distributed.is_initialized() else 0


def _line_of(code: CodeType, number: int) -> Line:
    return (code.co_filename, number, code.co_qualname)
