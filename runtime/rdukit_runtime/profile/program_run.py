"""A profiled run of a program: start it with recorders in its processes, and read what they recorded.

The program imports torch; this process does only if another one has recorded something.
"""

import json
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rdukit.files.owned import scratch_folder
from rdukit.settings import TELEMETRY_RUN_SPANS, TELEMETRY_SPAN_FILE
from rdukit.telemetry.model import Span
from rdukit.telemetry.otlp_lines import read_span_file
from rdukit_runtime.settings import PROFILE_EVENTS, PROFILE_FOLDER

if TYPE_CHECKING:
    from rdukit_runtime.profile.recording import ProcessRecording

#: Bytes of the trace that a call or a section takes: an event on the host's track, one on the chip's.
BYTES_A_CALL: Final = 400
#: Spans that are read; a compile has about ten, and one a kernel.
_MOST_SPANS: Final = 5000
_MOST_SPAN_BYTES: Final = 1 << 24


@dataclass(frozen=True, slots=True)
class ProgramProfile:
    """A profiled program. Times are ns of ``CLOCK_MONOTONIC``; ``wall_ns`` from its start to its end."""

    command: str
    status: int
    began_ns: int
    wall_ns: int
    recordings: tuple["ProcessRecording", ...]
    spans: tuple[Span, ...]


def profile_program(
    command: Sequence[str], most_events: int, environment: Mapping[str, str], output: int | None = None
) -> ProgramProfile:
    """Run a program with recorders in its processes.

    Args:
        most_events: calls and sections that each process keeps. environment: the program's variables, without the
        recorder's.
        output: descriptor of its output; None: this process's.
    Raises:
        NotFound: the program cannot be started.
    """
    from rdukit_runtime.profile.snprof import run_program

    with scratch_folder("rdukit-profile") as scratch:
        spans_file = scratch / "spans.otlp"
        recorded = {
            **environment,
            PROFILE_FOLDER.variable: str(scratch),
            PROFILE_EVENTS.variable: str(most_events),
            TELEMETRY_SPAN_FILE.variable: str(spans_file),
            TELEMETRY_RUN_SPANS.variable: "0",
        }
        offset_ns, began_ns = time.time_ns() - time.perf_counter_ns(), time.perf_counter_ns()
        status = run_program(list(command), recorded, output)
        wall_ns = time.perf_counter_ns() - began_ns
        recordings = read_recordings(scratch)
        spans = read_span_file(spans_file, _MOST_SPANS, _MOST_SPAN_BYTES) if spans_file.exists() else []
    if spans:
        from rdukit_runtime.profile.recording import monotonic_spans

        spans = monotonic_spans(spans, offset_ns)
    if len(recordings) == 1:  # the end of the process, after it wrote, belongs to it as well
        recordings = [replace(recordings[0], started_ns=began_ns, ended_ns=began_ns + wall_ns)]
    return ProgramProfile(shlex.join(command), status, began_ns, wall_ns, tuple(recordings), tuple(spans))


def read_recordings(folder: Path) -> list["ProcessRecording"]:
    """Return the recordings of a program's processes, by rank.

    Raises:
        InvalidArgument: a process wrote something else.
    """
    from rdukit_runtime.profile.recording import read_recording
    from rdukit_runtime.profile.step import breakdown_from_dict

    found = []
    for path in folder.glob("*.timeline"):
        breakdown = breakdown_from_dict(json.loads(path.with_suffix(".json").read_text()))
        found.append(read_recording(json.loads(path.read_text()), breakdown))
    return sorted(found, key=lambda each: (each.rank, each.pid))
