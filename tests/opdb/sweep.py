"""Try many cases: each judgement becomes a line of a file, and a crash of the process costs one case."""

import contextlib
import json
import logging
import os
import random
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final

from opdb.cases import Case, chosen_samples, describe, operator_table
from opdb.compare import State, Verdict

#: Cases whose native kernels are built together.
_BATCH: Final = 64
#: Seconds after which a case counts as hung.
CASE_LIMIT_S: Final = 120


@dataclass(frozen=True, slots=True)
class Plan:
    """A choice of cases. ``part`` of ``parts``: every so many-th operator. ``count`` of them by ``seed``; 0 = all.

    ``kernels``: what ``prepare_environment`` was given; it stands in the records.
    """

    operators: tuple[str, ...] = ()
    part: int = 1
    parts: int = 1
    samples: int = 4
    modes: tuple[str, ...] = ("o0", "o1", "o3")
    dtypes: tuple[str, ...] = ("f32", "bf16")
    training: tuple[bool, ...] = (False, True)
    host_fallback: bool = False
    count: int = 0
    seed: int = 0
    kernels: str = "portable"


def choose_operators(plan: Plan, names: Sequence[str]) -> list[str]:
    """Return the operators of a plan, in order."""
    found = [name for name in sorted(names) if not plan.operators or name in plan.operators]
    if plan.count and plan.count < len(found):
        found = sorted(random.Random(plan.seed).sample(found, plan.count))
    return found[plan.part - 1 :: plan.parts]


def cases_of(plan: Plan, operator: str, samples: int) -> Iterator[Case]:
    """Return the cases of one operator that has so many samples."""
    for sample in range(samples):
        for dtype in plan.dtypes:
            for training in plan.training:
                for mode in plan.modes:
                    yield Case(operator, sample, mode, dtype, training, plan.host_fallback)


def run_plan(plan: Plan, out: Path) -> Iterator[dict[str, Any]]:
    """Judge all cases of a plan that ``out`` lacks, append each to it, and give it."""
    from opdb.judge import judge
    from opdb.natives import build_together, without_builds

    table, done = operator_table(), {key_of(record) for record in read_records([out])}
    with (
        tempfile.TemporaryDirectory() as folder, out.open("a", buffering=1) as stream, warnings.catch_warnings(),
        _without_logs(),
    ):  # fmt: skip
        warnings.simplefilter("ignore")
        left = (
            (table[name], case, samples[case.sample])
            for name in choose_operators(plan, list(table)) for samples in [chosen_samples(table[name], plan.samples)]
            for case in cases_of(plan, name, len(samples))
            if key_of({**asdict(case), "kernels": plan.kernels}) not in done
        )  # fmt: skip
        while batch := list(islice(left, _BATCH)):
            if plan.kernels == "native":
                _current(out).unlink(missing_ok=True)
                build_together(batch, Path(folder))
            for op, case, sample in batch:
                record: dict[str, Any] = {**asdict(case), "kernels": plan.kernels}
                _current(out).write_text(json.dumps(record))
                with without_builds() if plan.kernels == "native" else contextlib.nullcontext():
                    verdict = _within_limit(partial(judge, op, case, sample, Path(folder)))
                record |= {"state": verdict.state, "code": verdict.code, "text": verdict.text}
                if verdict.natives:
                    record["natives"] = verdict.natives
                if verdict.state is not State.RIGHT:
                    record["arguments"] = describe(sample)
                stream.write(json.dumps(record) + "\n")
                yield record


@contextlib.contextmanager
def _without_logs() -> Iterator[None]:
    """Say nothing of what compiles and fails on purpose."""
    former = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(former)


class _Hung(BaseException):
    """The time of a case is over."""


def _within_limit(judge: Callable[[], Verdict]) -> Verdict:
    def late(number: int, frame: object) -> None:
        raise _Hung

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(CASE_LIMIT_S)
    try:
        return judge()
    except _Hung:
        return Verdict(State.BARE, "hung", f"took more than {CASE_LIMIT_S} s")
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def run_in_children(command: Sequence[str], out: Path) -> None:
    """Run ``command``, which judges cases into ``out``, again and again until it ends by itself.

    Raises:
        RuntimeError: it ended before its first case.
    """
    while (ended := subprocess.run(command, check=False).returncode) < 0 or ended >= 128:
        if not _current(out).exists():
            raise RuntimeError(f"{' '.join(command)} ended with {ended}")
        record = json.loads(_current(out).read_text())
        _current(out).unlink()
        record |= {"state": State.BARE, "code": f"signal {-ended}", "text": "the process died"}
        with out.open("a") as stream:
            stream.write(json.dumps(record) + "\n")
        print(f"died: {record}", file=sys.stderr, flush=True)
    if ended:
        raise SystemExit(ended)


def _current(out: Path) -> Path:
    return out.with_suffix(".current")


def read_records(files: Sequence[Path]) -> list[dict[str, Any]]:
    """Return all records of result files, of each case the last."""
    found: dict[object, dict[str, Any]] = {}
    for file in files:
        if file.exists():
            for line in file.read_text().splitlines():
                record = json.loads(line)
                found[key_of(record)] = record
    return list(found.values())


def key_of(record: dict[str, Any]) -> tuple[object, ...]:
    """Return what tells one case from another."""
    return (*(record[name] for name in Case.__slots__), record.get("kernels", "portable"))


def prepare_environment(kernels: str) -> None:
    """Prepare the settings of a sweep: caches of its own, no node, checks on, but none that hides wrong kernels."""
    os.environ.setdefault("RDUKIT_HOME", tempfile.mkdtemp(prefix="operators-"))
    os.environ.update(
        RDUKIT_NODE="private", RDUKIT_CHECK="1", RDUKIT_ISOLATION_MODE="off", RDUKIT_KERNELS=kernels,
        OMP_NUM_THREADS="1", RDUKIT_KERNEL_CHECK="off",
    )  # fmt: skip
    if kernels == "portable":  # else sections are compiled twice, the second time with kernels that are kept
        os.environ["RDUKIT_SECTION_CACHE"] = "0"
