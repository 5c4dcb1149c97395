"""Many programs, one seed after the other, in a process that may die: what a worker says of each is a line of JSON.

A worker judges seeds in groups: portable ones alone, native ones together, so that one C++ compile serves many and
programs that have nothing to do with each other share a PEF. A worker that ends early (an abort, a signal) is started
again after the group that it was at, each program of which is then judged in a process of its own.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from fuzzing.generate import generate
from fuzzing.programs import Program
from fuzzing.shrink import shrink
from fuzzing.trial import Outcome, Verdict, Way, judge_alone, judge_together

#: Programs whose native kernels are built together.
GROUP: Final = 32
#: Programs that a process judges before another takes its place.
_MAX_PER_PROCESS: Final = 400

Report = tuple[int, Verdict]


def judge_seeds(seeds: Sequence[int], way: Way, folder: Path) -> Iterator[Report]:
    """Judge seeds in this process; yield the verdicts as they come."""
    size = GROUP if way.kernels == "native" else 1
    for start in range(0, len(seeds), size):
        group = seeds[start : start + size]
        yield from zip(group, judge_together([generate(seed) for seed in group], way, folder), strict=True)


def sweep(seeds: Sequence[int], way: Way, folder: Path) -> Iterator[Report]:
    """Judge seeds in processes of their own, which may die."""
    left = list(seeds)
    while left:
        begun = left[:_MAX_PER_PROCESS]
        reports = 0
        for report in _in_process(begun, way, folder):
            reports += 1
            yield report
        left = left[reports:]
        if reports == len(begun):
            continue
        size = GROUP if way.kernels == "native" else 1
        doubtful, left = left[:size], left[size:]
        alone = [report for seed in doubtful for report in _in_process([seed], way, folder)]
        yield from alone
        dead = set(doubtful) - {seed for seed, _ in alone}
        for seed in dead:
            yield seed, Verdict(Outcome.BARE, "the process died")
        if not dead:
            yield doubtful[0], Verdict(Outcome.BARE, "the process died", f"compiled together: seeds {doubtful}")


def _in_process(seeds: Sequence[int], way: Way, folder: Path) -> Iterator[Report]:
    special = ["special"] if way.special else []
    command = [sys.executable, "-m", "fuzzing.sweep", str(folder), way.mode, way.kernels, way.precision, *special]
    here = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=here) as worker:
        assert worker.stdin is not None and worker.stdout is not None
        worker.stdin.write(json.dumps(list(seeds)))
        worker.stdin.close()
        for line in worker.stdout:
            seed, outcome, cause, detail, refused = json.loads(line)
            yield seed, Verdict(Outcome(outcome), cause, detail, tuple(refused))


def shrink_failure(program: Program, verdict: Verdict, way: Way, folder: Path, max_trials: int) -> Program:
    """Return a smaller program with the same outcome; of an error that is none of ours, with the same cause."""

    def fails(candidate: Program) -> bool:
        found = judge_alone(candidate, way, folder)
        same_cause = found.cause == verdict.cause or verdict.outcome is Outcome.WRONG
        return found.outcome == verdict.outcome and same_cause

    return shrink(program, fails, max_trials)


def simplest_way(program: Program, verdict: Verdict, way: Way, folder: Path) -> Way | None:
    """Return the cheapest way in which a program alone fails with the same outcome; None if it does in none."""
    ways = [Way(way.mode, "portable", precision, way.special) for precision in ("f32", way.precision)]
    ways.append(way)
    for candidate in dict.fromkeys(ways):
        if judge_alone(program, candidate, folder).outcome is verdict.outcome:
            return candidate
    return None


def _work(argv: Sequence[str], write: Callable[[str], object]) -> None:
    folder, mode, kernels, precision, *special = argv
    way = Way(mode, kernels, precision, bool(special))
    for seed, verdict in judge_seeds(json.load(sys.stdin), way, Path(folder)):
        write(json.dumps([seed, verdict.outcome, verdict.cause, verdict.detail, verdict.refused]) + "\n")


if __name__ == "__main__":
    _answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever else is said goes where errors go
    _work(sys.argv[1:], _answers.write)
