"""Build the page of a profiled program: read its PEFs and this machine's limits, judge, draw. The doing part.

Source: ours.
"""

import linecache
import os
import platform
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Final

import torch

from rdukit import __version__
from rdukit.errors import NotFound, RdukitError
from rdukit.pef.file import LoadedPef, read_pef
from rdukit.pef.kernel import KernelGraph
from rdukit.settings import DEVICE, KERNELS
from rdukit.telemetry.model import Span
from rdukit.units import format_bytes, format_date, format_seconds
from rdukit_runtime.engine.machine_limits import MachineLimits, limits_file, load_limits
from rdukit_runtime.engine.portable import count_operators
from rdukit_runtime.profile.pef import Measured, Profile, SectionWork, limit_dtype, section_rows
from rdukit_runtime.profile.recording import ProcessRecording, account, find_straggler
from rdukit_runtime.profile.roofline import draw_roofline
from rdukit_runtime.report.advice import FEW_RUNS, find_advice, find_verdict
from rdukit_runtime.report.calm import at_calm_pace, calm_part
from rdukit_runtime.report.drawings import draw_life, draw_memory, draw_run, find_median_run
from rdukit_runtime.report.facts import (
    ProgramFacts,
    count_copies,
    line_times,
    option_of,
    program_python_ns,
    reading_ns,
    section_facts,
)
from rdukit_runtime.report.flame import flame_boxes
from rdukit_runtime.report.page import MOST_LINES, PagePicture, ReportPage, SourceLine
from rdukit_runtime.settings import ENGINE_THREADS

#: Most runs that the roofline takes medians of.
_MOST_RUNS: Final = 1000
#: Characters of a line of source.
_MOST_TEXT: Final = 160
#: Variables that decide how fast a program runs.
_VARIABLES: Final = ("OMP_NUM_THREADS", ENGINE_THREADS.variable, DEVICE.variable, KERNELS.variable)


def build_page(
    title: str, recordings: Sequence[ProcessRecording], spans: Sequence[Span], commands: Sequence[str],
    environment: Mapping[str, str],
) -> ReportPage:  # fmt: skip
    """Return the page of a finished program: of its slowest rank if one stands out, else of the first.

    Args:
        recordings: at least one. commands: commands that repeat the measurement. environment: the program's variables.
    """
    straggler = find_straggler(recordings)
    recording = next((r for r in recordings if straggler and r.rank == straggler[0]), recordings[0])
    missing: list[str] = []
    loaded = _read_pefs(recording, missing)
    limits = _read_limits(recording, missing)
    works = {number: _works_of(recording, number, pef) for number, pef in loaded.items()}
    own_spans = spans if len(recordings) == 1 else ()
    rows = account(recording, own_spans)
    lines = line_times(recording)
    facts = ProgramFacts(
        breakdown=recording.breakdown, wall_ns=recording.wall_ns, sections=section_facts(recording, works, limits),
        phases={row.name: row.nanoseconds for row in rows if row.part == "host"}, reads_ns=reading_ns(recording),
        program_ns=program_python_ns(recording), copies=count_copies(recording),
        limits=limits, batch=_batch_of(loaded), mode=option_of(recording.pefs, "mode"),
        precision=next((pef.pef.precision for pef in loaded.values()), ""), line=lines[0][0] if lines else None,
    )  # fmt: skip
    calm = calm_part(recording)
    quiet = replace(
        facts, breakdown=calm.breakdown, sections=section_facts(calm, works, limits), reads_ns=reading_ns(calm),
        program_ns=program_python_ns(calm), copies=count_copies(calm),
    )  # fmt: skip
    boxes, left_out = flame_boxes(recording)
    return ReportPage(
        title=title,
        process=f"process {recording.pid}, rank {recording.rank} of {len(recordings)}",
        facts=facts,
        verdict=find_verdict(facts),
        notes=[*_notes(recording, straggler), *_disturbance(limits)],
        advice=find_advice(at_calm_pace(facts, quiet)),
        account=[(row.part, row.name, row.nanoseconds) for row in rows if row.part == "host"],
        pictures=[*_pictures(recordings, recording, spans, missing), *_roofline(recording, loaded, works, limits)],
        flame=boxes,
        flame_left_out=left_out,
        lines=[SourceLine(line, calls, ns, _text_of(line)) for line, calls, ns in lines[:MOST_LINES]],
        environment=_about(recording, limits, environment),
        commands=commands,
        missing=missing,
    )


def _read_pefs(recording: ProcessRecording, missing: list[str]) -> dict[int, LoadedPef]:
    found = {}
    for number, pef in enumerate(recording.pefs):
        try:
            loaded = read_pef(Path(pef["path"]))
            if [section.kernel for section in loaded.pef.sections] != [each["kernel"] for each in pef["sections"]]:
                raise NotFound("another PEF has replaced it since")
            found[number] = loaded
        except (RdukitError, OSError, KeyError) as error:
            reason = error.message if isinstance(error, RdukitError) else str(error)
            missing.append(f"Limits of the sections of {pef['name']}: its PEF cannot be read ({reason}).")
    return found


def _disturbance(limits: MachineLimits | None) -> list[str]:
    """Return the note on limits that other programs may have lowered; no advice is based on these."""
    if limits is None or not limits.is_disturbed:
        return []
    return [
        f"Other programs used {100 * limits.others_share:.0f} % of the processors' time while this machine's limits "
        "were measured: shares of limits, and the limits named for sections, may be wrong. On an idle machine "
        "rdukit pef profile FILE.pef --measure-limits measures them again."
    ]


def _read_limits(recording: ProcessRecording, missing: list[str]) -> MachineLimits | None:
    if not recording.pefs:
        missing.append("Limits of the sections: the program loaded no PEF.")
        return None
    pef = recording.pefs[0]
    try:
        return load_limits(pef["threads"], device=torch.device(pef["device"]))
    except (RdukitError, RuntimeError, KeyError) as error:
        missing.append(f"This machine's limits: they cannot be measured ({error}).")
        return None


def _works_of(recording: ProcessRecording, pef: int, loaded: LoadedPef) -> dict[int, SectionWork]:
    """Return the work of the sections that ran."""
    kernels: dict[str, tuple[str, int]] = {}
    found = {}
    for index, number in recording.section_times():
        section = loaded.pef.sections[number]
        if index != pef:
            continue
        if section.kernel not in kernels:
            graph: KernelGraph = loaded.kernels[section.kernel]
            kernels[section.kernel] = (limit_dtype(graph), count_operators(graph))
        dtype, operators = kernels[section.kernel]
        form = recording.pefs[pef]["sections"][number]["form"]
        found[number] = SectionWork(section, form, dtype, operators)
    return found


def _batch_of(loaded: Mapping[int, LoadedPef]) -> int | None:
    values = (pef.pef.metadata.get("batch_size") for pef in loaded.values())
    return next((value for value in values if isinstance(value, int) and value > 0), None)


def _notes(recording: ProcessRecording, straggler: tuple[int, float] | None) -> list[str]:
    notes = []
    if straggler is not None:
        rank, times = straggler
        notes.append(f"Rank {rank} takes {times:.2f} times as long per run as the other ranks, which wait for it.")
    if recording.breakdown.runs < FEW_RUNS:
        notes.append(f"Only {recording.breakdown.runs} runs: measure {FEW_RUNS} or more before you decide.")
    if recording.dropped:
        notes.append(f"Pictures show the first {len(recording.calls)} calls; {recording.dropped} came later.")
    return notes


def _pictures(
    recordings: Sequence[ProcessRecording], recording: ProcessRecording, spans: Sequence[Span], missing: list[str]
) -> list[PagePicture]:
    life = "Phases, calls and device runs over the program's life; the account has the figures."
    pictures = [PagePicture("Timeline", draw_life(recordings, spans), life)]
    run = find_median_run(recording)
    if run is None:
        missing.append("A run's sections: no run was kept.")
    else:
        taken = format_seconds((run.end_ns - run.begin_ns) / 1e9)
        words = f"The sections of the run of median duration, {taken}; the sections' table has the figures."
        pictures.append(PagePicture("A run", draw_run(recording, run), words))
    if recording.memory:
        most = format_bytes(max(size for _, size in recording.memory))
        planned = max((s["device_bytes"] for pef in recording.pefs for s in pef["sections"]), default=0)
        words = f"Resident memory, at most {most}. Device memory, planned: {format_bytes(planned)}."
        pictures.append(PagePicture("Memory", draw_memory(recording), words))
    else:
        missing.append("Memory: no sample was taken.")
    return pictures


def _roofline(
    recording: ProcessRecording, loaded: Mapping[int, LoadedPef], works: Mapping[int, Mapping[int, SectionWork]],
    limits: MachineLimits | None,
) -> list[PagePicture]:  # fmt: skip
    """Return the roofline of the PEF with the longest sections; none without limits, or if it cannot be read."""
    spent: dict[int, int] = {}
    for (number, _), (_, taken) in recording.section_times().items():
        spent[number] = spent.get(number, 0) + taken
    longest = max(spent, key=lambda number: spent[number], default=-1)
    kept = [call for call in recording.calls if call.sections and call.pef == longest][:_MOST_RUNS]
    if longest not in loaded or limits is None or not kept:
        return []
    runs = tuple(tuple((section, ns / 1e9) for section, ns in call.sections) for call in kept)
    durations = tuple((call.end_ns - call.begin_ns) / 1e9 for call in kept)
    measured = Measured(runs, durations)
    pef = loaded[longest].pef
    rows = section_rows(list(works[longest].values()), measured, limits)
    if not any(row.flops for row in rows):
        return []
    profile = Profile(
        path=str(loaded[longest].path), pef=pef.name, mode=pef.mode, arch=pef.arch, precision=pef.precision,
        graphs=tuple(pef.graphs), sections=pef.sections, runs=len(kept), limits=limits, rows=rows,
        outside_s=max(median(durations) - sum(row.measured_s for row in rows), 0.0), last_run=runs[-1],
    )  # fmt: skip
    words = "Sections by FLOPs per byte and GFLOP/s, under this machine's limits; the sections' table has the figures."
    return [PagePicture("Roofline", draw_roofline(profile), words)]


def _text_of(line: tuple[str, int, str]) -> str:
    """Return the text of a line of the program; empty if its file is gone."""
    file, number, _ = line
    linecache.checkcache(file)
    return linecache.getline(file, number).strip()[:_MOST_TEXT]


def _about(
    recording: ProcessRecording, limits: MachineLimits | None, environment: Mapping[str, str]
) -> list[tuple[str, str]]:
    found = [
        ("written", f"{format_date(time.time())} UTC"),
        ("rdukit", __version__),
        ("Python, torch", f"{sys.version.split()[0]}, {torch.__version__}"),
        ("system", f"{platform.system()} {platform.machine()}, {os.cpu_count()} processors"),
        ("load", ", ".join(f"{each:.1f}" for each in os.getloadavg()) + " (1, 5, 15 minutes)"),
    ]
    found += [(f"PEF {pef['name']}", f"{pef['arch']}, {pef['mode']}; kernels {pef.get('kernels', '')}")
              for pef in recording.pefs]  # fmt: skip
    found += [(name, environment[name]) for name in _VARIABLES if name in environment]
    if limits is not None:
        gemm = ", ".join(f"{dtype} {speed:.3g}" for dtype, speed in limits.gemm.items() if speed)
        found.append(("machine", f"{limits.processor}, {limits.threads} threads"))
        found.append(("limits", f"memory {limits.memory_gb_s:.3g} GB/s; GEMM {gemm} GFLOP/s; {_age_of_limits()}"))
        if limits.is_disturbed:
            others = f"{100 * limits.others_share:.0f} % of the processors' time"
            found.append(("limits are disturbed", f"other programs used {others} while they were measured"))
    return found


def _age_of_limits() -> str:
    try:
        return f"measured {format_seconds(max(time.time() - limits_file().stat().st_mtime, 0.0))} before"
    except OSError:
        return "measured now"
