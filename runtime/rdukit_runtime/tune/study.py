"""A study of ``rdukit tune``: compile points, predict, measure the promising ones, compare the best with the present
program.

Points are compiled without native kernels to be predicted, and with them to be measured. Results of earlier studies are
reused.

Source: ours.
"""

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rdukit.errors import NotFound, RdukitError, RuntimeFault
from rdukit.files.owned import scratch_folder
from rdukit.pef.file import LoadedPef, read_pef
from rdukit.settings import DEVICE, KERNELS
from rdukit_runtime.engine.machine_limits import MachineLimits
from rdukit_runtime.engine.portable import count_operators
from rdukit_runtime.profile.pef import SectionWork, limit_dtype, limits_of
from rdukit_runtime.sambatune.config import TuneConfig
from rdukit_runtime.settings import ENGINE_TF32, ENGINE_THREADS
from rdukit_runtime.tune.search import LEAST, TuneCandidate, choose_next, estimate
from rdukit_runtime.tune.space import Point, option_words, point_key
from rdukit_runtime.tune.store import CompiledPoint, ResultFile, digest_of, forms_of

_NAME: Final = "tuned"
#: Variables that decide how fast a PEF runs.
_VARIABLES: Final = (
    "OMP_NUM_THREADS",
    DEVICE.variable,
    ENGINE_THREADS.variable,
    ENGINE_TF32.variable,
    KERNELS.variable,
)
#: Variables of a compile that only predicts.
_PORTABLE: Final[Mapping[str, str]] = {KERNELS.variable: "portable"}
#: Projected seconds of two equal PEFs differ by less.
_SAME_S: Final = 1e-12
#: Best points that are measured again, and the share of the best speed from which on they are near.
_FINALISTS: Final = 2
_NEAR: Final = 0.85
_AGAIN: Final = " again"
#: Steps of a round when two PEFs are compared.
_RUNS: Final = 5
_MOST_WORDS: Final = 300


@dataclass(frozen=True, slots=True)
class Tried:
    """A point with its known results. Speeds are samples/s; None: not measured."""

    point: Point
    compiled: CompiledPoint
    measured: float | None = None
    expected: float | None = None

    @property
    def predicted(self) -> float:
        """Samples/s on this machine, by the cost model's work and the machine's limits."""
        return self.compiled.batch / self.compiled.predicted_s if not self.compiled.error else 0.0

    @property
    def projected(self) -> float:
        """Samples/s on the emulated chip, by the cost model."""
        return self.compiled.batch / self.compiled.projected_s if not self.compiled.error else 0.0


@dataclass(slots=True)
class TuneStudy:
    """A study of one program.

    Args:
        config: the program; ``app`` is the path of its file. limits: this machine's limits. points, results: stored
            results.
        echo: prints a line for the user.
    """

    config: TuneConfig
    limits: MachineLimits
    points: ResultFile
    results: ResultFile
    echo: Callable[[str], None]
    #: Compiles, measurements, and results that were reused.
    compiles: int = 0
    measurements: int = 0
    reused: int = 0
    tried: dict[str, Tried] = field(default_factory=dict)

    def compile_all(self, points: Sequence[Point]) -> None:
        """Compile all points that are not known, to predict them.

        Raises:
            RuntimeFault: no point compiles; the message has the reason of the first.
        """
        for number, point in enumerate(points, 1):
            key = point_key(point)
            found = self.points.find_point(key)
            if found is not None:
                self.reused += 1
            else:
                found = self._compile_point(point)
                if not found.error:
                    self.points.put_point(key, found)
            self.tried[key] = Tried(point, found)
            words = found.error or f"{self.tried[key].predicted:.4g} samples/s predicted"
            self.echo(f"{number}/{len(points)} {describe(point)}: {words}")
        if not self.compiled:
            reason = next(each.compiled.error for each in self.tried.values())
            raise RuntimeFault(f"no point compiles; the first: {reason}")

    @property
    def compiled(self) -> list[Tried]:
        """Points that compile."""
        return [each for each in self.tried.values() if not each.compiled.error]

    def search(self, most: int, first: Point | None) -> None:
        """Measure points until the others promise less speed, or ``most`` were measured; always measure ``first``.

        Equal PEFs are measured once. Measurements of earlier studies count as such, and cost nothing. Two of ``most``
        repeat the two best points if they are near each other: the better measurement of each counts.
        """
        candidates = [TuneCandidate(t.point, t.compiled.digest, t.predicted) for t in self.compiled]
        digests = {candidate.digest for candidate in candidates if candidate.point}
        own = [candidate for candidate in candidates if candidate.point or candidate.digest not in digests]
        speeds: dict[str, float] = {}
        for each in self.compiled:
            seconds = self.results.find_seconds(self._measured_key(each.compiled.digest))
            if seconds is not None and each.compiled.digest not in speeds:
                speeds[each.compiled.digest] = each.compiled.batch / seconds
                self.reused += 1
        begin = self.tried[point_key(first)] if first is not None else None
        pending = [TuneCandidate(begin.point, begin.compiled.digest, 1.0)] if begin and not begin.compiled.error else []
        failed: set[str] = set()
        while self.measurements < max(most - _FINALISTS, LEAST):
            left = [candidate for candidate in own if candidate.digest not in failed]
            chosen = pending.pop() if pending else choose_next(left, speeds)
            if chosen is None:
                break
            if chosen.digest in speeds:
                continue
            try:
                seconds = self._measure(chosen.point, chosen.digest)
            except RdukitError as error:
                failed.add(chosen.digest)
                self.echo(f"{describe(chosen.point)}: {error.message}")
                continue
            finally:
                self.measurements += 1
            batch = self.tried[point_key(chosen.point)].compiled.batch
            speeds[chosen.digest] = batch / seconds
            self.echo(f"{describe(chosen.point)}: {batch / seconds:.4g} samples/s measured")
        self._repeat(candidates, speeds)
        self._note(candidates, speeds)

    def _repeat(self, candidates: Sequence[TuneCandidate], speeds: dict[str, float]) -> None:
        """Measure the best points again if they are near each other: one measurement may be disturbed."""
        best = sorted(speeds, key=lambda digest: -speeds[digest])[:_FINALISTS]
        if len(best) < _FINALISTS or speeds[best[-1]] < _NEAR * speeds[best[0]]:
            return
        for digest in best:
            point = next(candidate.point for candidate in candidates if candidate.digest == digest)
            seconds = self.results.find_seconds(self._measured_key(digest, _AGAIN))
            if seconds is not None:
                self.reused += 1
            else:
                try:
                    seconds = self._measure(point, digest, _AGAIN)
                except RdukitError as error:
                    self.echo(f"{describe(point)}: {error.message}")
                    continue
                finally:
                    self.measurements += 1
            speed = self.tried[point_key(point)].compiled.batch / seconds
            self.echo(f"{describe(point)}: {speed:.4g} samples/s measured again")
            speeds[digest] = max(speeds[digest], speed)

    def _note(self, candidates: Sequence[TuneCandidate], speeds: Mapping[str, float]) -> None:
        for candidate, found in zip(candidates, estimate(candidates, speeds), strict=True):
            key = point_key(candidate.point)
            tried = self.tried[key]
            expected = found.expected if speeds else None
            self.tried[key] = Tried(tried.point, tried.compiled, speeds.get(candidate.digest), expected)

    def best(self, objective: str) -> Tried:
        """Return the best point; of equally fast ones that which the cost model projects to be faster on the chip.

        Raises:
            NotFound: no point was measured.
        """
        if objective == "projected":
            return max(self.compiled, key=lambda each: (each.projected, point_key(each.point)))
        measured = [each for each in self.compiled if each.measured is not None]
        if not measured:
            raise NotFound("no point was measured; allow more with --measurements, or read the reasons above")
        return max(measured, key=lambda each: (each.measured or 0.0, each.projected, point_key(each.point)))

    def compare(self, before: Point, after: Point, rounds: int) -> dict[str, Any]:
        """Compare two points in turns; returns the step's entry of ``rdukit pef compare --json``.

        Raises:
            RuntimeFault: a compile or the measurement failed.
        """
        sides = [self._measured_key(self.tried[point_key(point)].compiled.digest) for point in (before, after)]
        key = f"{' against '.join(sides)}, {rounds} rounds"
        kept = self.results.find_ratio(key)
        if kept is not None:
            self.reused += 1
            return kept
        with scratch_folder("rdukit-tune") as scratch:
            folders = [scratch / name for name in ("before", "after")]
            paths = [self.compile(point, folder) for point, folder in zip((before, after), folders, strict=True)]
            found: dict[str, Any] = self._run_measure(paths, rounds)["step"]
        self.results.put(key, {**found, "at": time.time(), "load": os.getloadavg()[0]})
        return found

    def accepts(self, outcome: str, best: Tried) -> bool:
        """Return whether the program's compile accepts a file with the text ``outcome``, so that the result runs like
        the best point.
        """
        key = f"takes {point_key(best.point)} as a file"
        if self.points.results.get(key) == {"takes": True}:
            self.reused += 1
            return True
        with scratch_folder("rdukit-tune") as scratch:
            file = scratch / "tuned.yaml"
            file.write_text(outcome)
            try:
                path = self._compile_words(["--yaml-config", str(file)], scratch, _PORTABLE)
            except RdukitError as error:  # such as an option that its parser does not know
                self.echo(f"with --yaml-config: {error.message}")
                return False
            pef = read_pef(path).pef
        seconds = sum(section.cost.seconds for section in pef.sections)
        takes = digest_of(pef) == best.compiled.digest and abs(seconds - best.compiled.projected_s) < _SAME_S
        if takes:
            self.points.put(key, {"takes": True})
        return takes

    # -- one point ---------------------------------------------------------------------------------------------------

    def _compile_point(self, point: Point) -> CompiledPoint:
        with scratch_folder("rdukit-tune") as scratch:
            try:
                path = self.compile(point, scratch, _PORTABLE)
                loaded = read_pef(path)
                batch = loaded.pef.metadata.get("batch_size") or point.get("batch-size")
                if not isinstance(batch, int) or batch < 1:
                    raise NotFound("the PEF names no batch size; compile with config_dict=vars(args)")
                return CompiledPoint(
                    digest_of(loaded.pef), batch, predict_step(loaded, self.limits, forms_of(self.config)),
                    sum(section.cost.seconds for section in loaded.pef.sections),
                )  # fmt: skip
            except RdukitError as error:
                return CompiledPoint(error=error.message[:_MOST_WORDS])

    def compile(self, point: Point, folder: Path, variables: Mapping[str, str] | None = None) -> Path:
        """Compile a point into ``folder``; returns its PEF.

        Raises:
            RuntimeFault: the program failed. NotFound: it made no PEF there.
        """
        return self._compile_words(option_words(point), folder, variables or {})

    def _compile_words(self, options: Sequence[str], folder: Path, variables: Mapping[str, str]) -> Path:
        config = self.config
        command = [
            sys.executable, config.app, *config.compile_args, *config.model_args, *options,
            "--output-folder", str(folder), "--pef-name", _NAME,
        ]  # fmt: skip
        self.compiles += 1
        self._call(command, variables)
        path = folder / _NAME / f"{_NAME}.pef"
        if not path.is_file():
            raise NotFound(f"{shlex.join(command)} wrote no {path}; the program should compile with its options")
        return path

    def _measure(self, point: Point, digest: str, ending: str = "") -> float:
        with scratch_folder("rdukit-tune") as scratch:
            path = self.compile(point, scratch)
            if digest_of(read_pef(path).pef) != digest:
                raise RuntimeFault(
                    "a second compile produced a different program; the program should not depend on time or chance"
                )
            seconds = float(self._run_measure([path], 1)["step_s"])
        result = {"step_s": seconds, "at": time.time(), "load": os.getloadavg()[0]}
        self.results.put(self._measured_key(digest, ending), result)
        return seconds

    def _run_measure(self, paths: Sequence[Path], rounds: int) -> dict[str, Any]:
        words = [str(rounds), str(_RUNS), *map(str, paths)]
        printed = self._call([sys.executable, "-m", "rdukit_runtime.tune.measure", *words], {})
        found: dict[str, Any] = json.loads(printed.splitlines()[-1])
        return found

    def _measured_key(self, digest: str, ending: str = "") -> str:
        environment = {**os.environ, **self.config.env}
        return " ".join(
            [digest + ending, *(f"{name}={environment[name]}" for name in _VARIABLES if name in environment)]
        )

    def _call(self, command: Sequence[str], variables: Mapping[str, str]) -> str:
        """Run a command; returns its stdout.

        Raises:
            RuntimeFault: the command failed; the message has the end of its output.
        """
        environment = {**os.environ, **self.config.env, **variables}
        try:
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, errors="replace", check=False
            )
        except OSError as cause:
            raise RuntimeFault(f"{command[0]} cannot be started: {cause.strerror}") from cause
        if done.returncode:
            lines = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
            last = lines[-1][:_MOST_WORDS] if lines else "it printed nothing"
            raise RuntimeFault(f"{Path(command[1]).name} ended with status {done.returncode}: {last}")
        return done.stdout


def predict_step(loaded: LoadedPef, limits: MachineLimits, form: str = "native") -> float:
    """Return the seconds of a step by this machine's limits, as a lower bound.

    Args:
        form: of all sections: a native section is one call, a portable one a call for each operator.
    """
    seconds = 0.0
    for graph in loaded.pef.main_graphs():
        for number in graph.schedule:
            section = loaded.pef.sections[number]
            kernel = loaded.kernels[section.kernel]
            operators = count_operators(kernel)
            calls_s = limits.operator_s * (operators if form == "portable" else 1)
            _, limit_s, _ = limits_of(SectionWork(section, form, limit_dtype(kernel), operators), limits)
            seconds += max(limit_s, calls_s) + limits.operator_s
    return seconds


def describe(point: Point) -> str:
    """Return a point for people."""
    return " ".join(option_words(point)) or "as it is"
