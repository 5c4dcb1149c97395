"""The flow of ``sambatune``: compile, run, read counters, and write the reports. Every step may fail alone.

Source: compiler reference 10.2 to 10.5 (flow, tree, files); sambatune reference 1.2 (existing compile output).
Withdrawn since 1.19, and not written: the reports of bandwidth, paths and stalls.
"""

import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rdukit.errors import NotFound, RuntimeFault, Unavailable
from rdukit.files.atomic import write_reports
from rdukit.pef.file import read_pef
from rdukit.pef.model import Pef
from rdukit_node.cli.output import csv_text
from rdukit_runtime.profile.program_run import BYTES_A_CALL, profile_program
from rdukit_runtime.profile.snprof import run_program
from rdukit_runtime.profile.step import COLUMNS, Breakdown, breakdown_rows, join_breakdowns
from rdukit_runtime.sambatune.config import TuneConfig, find_program
from rdukit_runtime.sambatune.counters import counters_of, read_stages
from rdukit_runtime.sambatune.reports import Row, insights, section_rows, stage_rows, unified
from rdukit_runtime.sambatune.steps import StepLog
from rdukit_runtime.sambatune.workbook import make_workbook

if TYPE_CHECKING:
    from rdukit_runtime.profile.recording import ProcessRecording

#: Options of the instrumented compiles by the ending of their label.
INSTRUMENTED: Final[Mapping[str, tuple[str, ...]]] = {
    "metapipe_stage_cycles": ("--stage-instrumentation=metapipe_stage_cycles",),
    "metapipe_stage_cycles_stalls": ("--stage-instrumentation=metapipe_stage_cycles", "--include-read-stall-cycles"),
    "metapipe_buf_cycles": ("--stage-instrumentation=metapipe_buf_cycles",),
}
COMPILE: Final = "compile baseline"
SNPROF: Final = "snprof"
#: Most bytes of the stack trace.
_TRACE_BYTES: Final = 64_000_000
_THROUGHPUT: Final = re.compile(r"e2e_throughput: ([0-9.eE+-]+) samples/s")
_LATENCY: Final = re.compile(r"e2e_latency: ([0-9.eE+-]+) s")


@dataclass(frozen=True, slots=True)
class TunePaths:
    """Folders of one tuning below the artifact root."""

    root: Path
    label: str
    run: str

    @property
    def compiled(self) -> Path:
        """The folder that compiles write into."""
        return self.root / "apps" / self.label / "compile"

    @property
    def generated(self) -> Path:
        """The folder of this run's logs and reports."""
        return self.root / "sambatune_gen" / self.run

    @property
    def reports(self) -> Path:
        """The folder of the reports."""
        return self.generated / "reports"

    def measured(self, kind: str, ending: str = "") -> Path:
        """Return the file of raw figures of a kind: benchmark, snprof or instr-count."""
        return self.root / "perf_data" / kind / f"{self.label}{ending}.json"


def choose_paths(root: Path, config: TuneConfig, now: datetime) -> TunePaths:
    """Return new folders; a number is added if the minute's names are taken."""
    stamp, arch = f"{now.month}_{now.day}_{now.hour}_{now.minute}", config.option("--arch") or "rdu"
    number = 1
    while True:
        ending = "" if number == 1 else f"_{number}"
        found = TunePaths(root, f"{arch}__{stamp}{ending}_{Path(config.app).stem}", f"{config.name}_{stamp}{ending}")
        if not found.generated.exists() and not found.compiled.exists():
            return found
        number += 1


@dataclass(slots=True)
class Tuning:
    """Tuning of a configuration, from its compile to its reports.

    Args:
        folder: the configuration's folder, in which ``app`` is searched after the current one.
    Raises:
        InvalidArgument: ``app`` or ``run-app`` is not there.
    """

    config: TuneConfig
    paths: TunePaths
    modes: Sequence[str]
    folder: Path
    echo: Callable[[str], None]
    is_compile_only: bool = False
    log: StepLog = field(init=False)
    #: The PEF, once it exists, and figures in the order of their measurement.
    pef_path: Path | None = None
    breakdown: Breakdown | None = None
    recordings: "Sequence[ProcessRecording]" = ()
    host_sections: dict[int, tuple[int, int]] = field(default_factory=dict)
    throughput: float | None = None

    def __post_init__(self) -> None:
        self.log = StepLog(self.paths.generated / "logs", self.echo)
        folders = (Path.cwd(), self.folder)
        app, run_app = (find_program(app, folders) for app in (self.config.app, self.config.run_app))
        self.config = replace(self.config, app=str(app), run_app=str(run_app))

    def run(self) -> bool:
        """Do all steps; returns whether all succeeded."""
        log = self.log
        log.run("save the configuration", self._save)
        log.run("snconfig", self._snconfig, self._snconfig_command())
        if self.config.existing:
            has_pef = log.run("existing compile output", self._take_existing)
        else:
            has_pef = log.run(COMPILE, self._compile, self._compile_command())
        if not self.is_compile_only:
            self._measure(has_pef)
        if "instrument" in self.modes:
            self._instrument(has_pef)
        if not self.is_compile_only:
            self._after(has_pef, "reports", self._report)
        log.write()
        return not log.failed

    def _after(self, has_pef: bool, name: str, action: Callable[[], object], command: Sequence[str] = ()) -> None:
        if has_pef:
            self.log.run(name, action, command)
        else:
            self.log.skip(name, COMPILE if not self.config.existing else "existing compile output")

    def _measure(self, has_pef: bool) -> None:
        if "benchmark" in self.modes:
            command = self._app("measure-performance")
            self._after(has_pef, SNPROF, lambda: self._snprof(command), ["rdukit", "profile", "--", *command])
            command = self._app("measure-sections")
            self._after(has_pef, "measure-sections", lambda: self._measure_sections(command), command)
            command = self._app("measure-performance", "--run-graph-only")
            self._after(has_pef, "measure-performance, graph only", lambda: self._graph_only(command), command)
        if "run" in self.modes:
            command = self._app("run")
            self._after(has_pef, "run", lambda: self._snprof(command, "_run"), ["rdukit", "profile", "--", *command])

    # -- commands ----------------------------------------------------------------------------------------------------

    def _compile_command(self, ending: str = "", options: Sequence[str] = ()) -> list[str]:
        config, label = self.config, self.paths.label + ending
        return [
            sys.executable, config.app, *config.compile_args, "--debug", *config.model_args, *options,
            "--compiler-configs-file", str(self._knobs(ending)), "--output-folder", str(self.paths.compiled),
            "--pef-name", label,
        ]  # fmt: skip

    def _app(self, command: str, *options: str) -> list[str]:
        """Return the program's run; one with a program of its own is run by its real command."""
        config = self.config
        given = list(config.run_args)
        if given and not given[0].startswith("-"):
            named = given.pop(0)
            command = named if config.run_app != config.app or command == "run" else command
        elif config.run_app != config.app:
            command = "run"
        pef = self.pef_path or self.paths.compiled / self.paths.label / f"{self.paths.label}.pef"
        return [sys.executable, config.run_app, command, *config.model_args, *given, *options, f"--pef={pef}"]

    def _snconfig_command(self) -> list[str]:
        folder = self.paths.reports / "snconfig"
        return [sys.executable, "-m", "rdukit_node.cli.snconfig", "show", "Node", "all", "-j", str(folder)]

    def _call(self, command: Sequence[str]) -> str:
        """Run a command with the configuration's variables; return its output, which is also logged.

        Raises:
            RuntimeFault: it failed.
        """
        with self.log.run_log.open("ab+") as stream:
            began = stream.seek(0, os.SEEK_END)
            status = run_program(list(command), self._environment(), stream.fileno())
            stream.seek(began)
            printed = stream.read().decode(errors="replace")
        if status:
            raise _failed(status, printed)
        return printed

    def _environment(self) -> dict[str, str]:
        return {**os.environ, **self.config.env}

    # -- steps -------------------------------------------------------------------------------------------------------

    def _save(self) -> None:
        config = self.config
        text = json.dumps(
            {
                "app": config.app, "run-app": config.run_app, "model-args": config.model_args,
                "compile-args": config.compile_args, "run-args": config.run_args, "env": dict(config.env),
                "modes": list(self.modes),
            }, indent=1,
        )  # fmt: skip
        write_reports(self.paths.generated, {"configuration.json": text.encode()})

    def _snconfig(self) -> None:
        command = self._snconfig_command()
        with self.log.run_log.open("ab") as stream:
            status = run_program(command, self._environment(), stream.fileno())
        if status == Unavailable.exit_status:
            self.log.info("no node daemon runs, so programs use a private node, and snconfig shows nothing")
        elif status:
            raise _failed(status, "")

    def _knobs(self, ending: str) -> Path:
        return self.paths.generated / "test_lists" / f"compiler_configs_{self.paths.label}{ending}.json"

    def _compile(self) -> None:
        self.pef_path = self._compile_one("", ())

    def _compile_one(self, ending: str, options: Sequence[str]) -> Path:
        write_reports(self._knobs(ending).parent, {self._knobs(ending).name: b"{}\n"})
        self._call(self._compile_command(ending, options))
        label = self.paths.label + ending
        made = self.paths.compiled / label / f"{label}.pef"
        if not made.is_file():
            raise NotFound(
                f"the compile wrote no {made}; the program should call samba.session.compile with its options"
            )
        return made

    def _take_existing(self) -> None:
        folders = (Path.cwd(), self.folder)
        found = next((pefs for each in folders if (pefs := sorted((each / self.config.existing).glob("*.pef")))), [])
        if len(found) != 1:
            raise NotFound(f"{self.config.existing} holds {len(found)} PEF files; expected one compile's output folder")
        read_pef(found[0])
        self.pef_path = found[0]

    def _instrument(self, has_pef: bool) -> None:
        for ending, options in INSTRUMENTED.items():
            made: list[Path] = []

            def compile_one(ending: str = ending, options: Sequence[str] = options, made: list[Path] = made) -> None:
                made.append(self._compile_one(f"_{ending}", (*options, "--gen-tensorboard")))

            name, command = f"compile {ending}", self._compile_command(f"_{ending}", options)
            is_compiled = self.log.run(name, compile_one, command)
            if self.is_compile_only:
                continue
            step = f"read_perf_counters {ending}"
            if not is_compiled:
                self.log.skip(step, name)
                continue
            target = self.paths.measured("instr-count", f"_{ending}")
            self.log.run(step, lambda made=made, target=target: _write_json(target, counters_of(made[0])))  # type: ignore[misc]

    def _snprof(self, command: Sequence[str], ending: str = "") -> None:
        """Run under the recorder: breakdown, sections, stack trace."""
        from rdukit_runtime.profile.timeline_files import trace_text
        from rdukit_runtime.report.make import build_page
        from rdukit_runtime.report.page import render_page

        with self.log.run_log.open("ab+") as stream:
            began = stream.seek(0, os.SEEK_END)
            events = _TRACE_BYTES // BYTES_A_CALL
            found = profile_program(list(command), events, self._environment(), stream.fileno())
            stream.seek(began)
            printed = stream.read().decode(errors="replace")
        if found.status:
            raise _failed(found.status, printed)
        if not found.recordings:
            raise NotFound("the program ran no session, so there is no breakdown; check run-args")
        self.recordings = found.recordings
        self.breakdown = join_breakdowns(each.breakdown for each in found.recordings)
        self._take_sections(found.recordings)
        self.throughput = _figure(_THROUGHPUT, printed) or self.throughput
        rows = breakdown_rows(self.breakdown)
        repeat = [shlex.join(["rdukit", "profile", "--", *command])]
        page = build_page(f"{self.paths.label}{ending}", found.recordings, found.spans, repeat, self._environment())
        trace = trace_text(found.recordings, found.spans, found.began_ns, _TRACE_BYTES)
        write_reports(
            self.paths.reports,
            {
                "snprof/summary.csv": (csv_text(COLUMNS, rows) + "\n").encode(),
                f"{self.paths.label}{ending}_chrome_tracing_report.json": trace.encode(),
                f"report{ending}.html": render_page(page).encode(),
            },
        )
        _write_json(self.paths.measured("snprof", ending), {"command": found.command, "breakdown": rows})

    def _take_sections(self, recordings: "Sequence[ProcessRecording]") -> None:
        """Add up the sections of the PEF over the processes that ran it."""
        totals: dict[int, tuple[int, int]] = {}
        for recording in recordings:
            for (_, number), (runs, taken) in recording.section_times().items():
                before = totals.get(number, (0, 0))
                totals[number] = (before[0] + runs, before[1] + taken)
        self.host_sections = totals

    def _measure_sections(self, command: Sequence[str]) -> None:
        """Write the sections' times of the step before; if that failed, of a run for them alone."""
        if not self.host_sections:
            self._run_sections(command)
        sections = {str(k): {"runs": runs, "host_ns": ns} for k, (runs, ns) in self.host_sections.items()}
        _write_json(self.paths.measured("benchmark", "_measure_sections"), sections)

    def _run_sections(self, command: Sequence[str]) -> None:
        with self.log.run_log.open("ab") as stream:
            found = profile_program(list(command), 1, self._environment(), stream.fileno())
        if found.status:
            raise _failed(found.status, "")
        if not found.recordings:
            raise NotFound("the program ran no session, so no section was measured")
        self._take_sections(found.recordings)

    def _graph_only(self, command: Sequence[str]) -> None:
        printed = self._call(command)
        throughput, latency = _figure(_THROUGHPUT, printed), _figure(_LATENCY, printed)
        if throughput is None:
            raise NotFound(
                "the program printed no e2e_throughput; for measure-performance it should call "
                "samba.utils.measure_performance"
            )
        figures = {"throughput_samples_s": throughput, "latency_s": latency, "clock": "measured on this machine"}
        _write_json(self.paths.measured("benchmark", "_measure_performance"), figures)
        write_reports(self.paths.reports, {"benchmark-data/measure_performance.json": _json(figures)})
        script = "#!/bin/sh\n# Repeats the measurement of the graph alone.\nexec " + shlex.join(command) + "\n"
        write_reports(self.paths.reports, {"run_benchmarks/raw_data/run_with_benchmark.sh": script.encode()})

    def _report(self) -> None:
        assert self.pef_path is not None
        pef = read_pef(self.pef_path).pef
        sections = section_rows(pef, batch_of(pef), self.host_sections)
        stages: list[Row] = []
        missing = ""
        try:
            stages = stage_rows(read_stages(self.pef_path))
        except NotFound as error:
            missing = error.message
        breakdown = [] if self.breakdown is None else breakdown_rows(self.breakdown)
        files = {
            "section_report.csv": _csv(sections),
            "analysis/summary.json": _json(insights(pef, self.breakdown, stages)),
            "unified.json": _json(unified(sections, stages, breakdown)),
            "runtime_perf_info.json": _json(
                {"throughput_samples_s": self.throughput, "pef": pef.name, "arch": pef.arch, "mode": pef.mode}
            ),
            "collated_report.xlsx": make_workbook(
                {"Stage Latency": stages, "Sections": sections, "Host Device Breakdown": breakdown}
            ),
        }
        if stages:
            files["stage_report.csv"] = _csv(stages)
        write_reports(self.paths.reports, files)
        if missing:
            raise NotFound(f"no stage report: {missing}")


def batch_of(pef: Pef) -> int | None:
    """Return the compile's recorded number of samples in a step; None: not recorded."""
    value = pef.metadata.get("batch_size")
    return value if isinstance(value, int) and value > 0 else None


def copy_config(path: Path, paths: TunePaths) -> None:
    """Keep the configuration next to its reports."""
    paths.generated.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(path, paths.generated / path.name)


def _failed(status: int, printed: str) -> RuntimeFault:
    lines = [line for line in printed.splitlines() if line.strip()]
    said = f": {lines[-1][:300]}" if lines else ""
    return RuntimeFault(f"the command ended with status {status}{said}; its output is in logs/run.log")


def _figure(pattern: re.Pattern[str], printed: str) -> float | None:
    found = pattern.findall(printed)
    return float(found[-1]) if found else None


def _csv(rows: Sequence[Row]) -> bytes:
    return (csv_text(list(rows[0]) if rows else [], rows) + "\n").encode()


def _json(value: object) -> bytes:
    return json.dumps(value, indent=1).encode() + b"\n"


def _write_json(path: Path, value: Any) -> None:
    write_reports(path.parent, {path.name: _json(value)})
