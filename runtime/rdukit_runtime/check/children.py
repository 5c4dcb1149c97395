"""Judges units in child processes with limits: a faulty native kernel ends only the child.

The children are forks, of a process that has imported torch and has one thread.
"""

import contextlib
import ctypes
import os
import resource
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch

from rdukit.pef.kernel import KernelGraph
from rdukit.pef.units import KernelVerdict, Outcome, Unit, unit_from_json, verdict_from_json
from rdukit_runtime.check.judge import Side, judge
from rdukit_runtime.engine.native import load_native
from rdukit_runtime.engine.portable import Kernel, build_portable

#: Seconds and bytes that judging one unit may take.
LIMIT_S: Final = 60
LIMIT_BYTES: Final = 8 << 30

#: ``M_PERTURB`` of glibc's ``malloc.h``, and the byte that memory is filled with: 3.4e38 in f32.
_M_PERTURB: Final = -6
_FILL: Final = 0x7F

#: Called with a unit's digest and the verdict.
Answer = Callable[[str, KernelVerdict], None]


@dataclass(frozen=True, slots=True)
class JudgedFiles:
    """Units to judge: ``<digest>.unit`` in ``folder``, and the libraries of their kernels, ``<digest>.so``."""

    folder: Path
    units: Sequence[str]
    is_full: bool = False


def judge_all(job: JudgedFiles, answer: Answer) -> None:
    """Judge each unit. A unit that ends its child is refused, and the next child judges the units after it."""
    left = list(job.units)
    while left:
        done = _judge_in_child(job, left, answer)
        left = left[done:]


def _judge_in_child(job: JudgedFiles, units: Sequence[str], answer: Answer) -> int:
    """Judge units in one child until its end; return the number of verdicts."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        _child(job, units, writer)
    os.close(writer)
    done = 0
    with os.fdopen(reader, "rb") as said:
        for line in said:
            answer(units[done], verdict_from_json(line))
            done += 1
    _, status = os.waitpid(pid, 0)
    if done < len(units):
        answer(units[done], KernelVerdict(Outcome.REFUSED, _how_it_ended(status)))
        done += 1
    return done


def _child(job: JudgedFiles, units: Sequence[str], writer: int) -> None:
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + LIMIT_BYTES, used + LIMIT_BYTES))
        torch.set_num_threads(1)  # the parent's further threads are not in a fork, and would be waited for
        _fill_new_memory()
        silent = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silent, 1)
        os.dup2(silent, 2)
        for digest in units:
            signal.alarm(LIMIT_S)
            verdict = judge_files(job.folder, digest, job.is_full)
            os.write(writer, f"{verdict.to_json()}\n".encode())
        os._exit(0)
    except BaseException:  # noqa: BLE001 - a fork must not return into its parent's program
        os._exit(1)


def _fill_new_memory() -> None:
    """Make glibc's allocator, if it is used, fill new memory with large numbers.

    Elements that a kernel fails to write are then not right by chance.
    """
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).mallopt(_M_PERTURB, _FILL ^ 0xFF)


def judge_files(folder: Path, digest: str, is_full: bool) -> KernelVerdict:
    """Judge a unit whose files lie in ``folder``."""
    unit = unit_from_json((folder / f"{digest}.unit").read_bytes())
    try:
        native = _native_side(folder, unit)
    except Exception as cause:  # noqa: BLE001 - a library that cannot be loaded is not used
        return KernelVerdict(Outcome.REFUSED, f"its library cannot be loaded: {cause}")
    try:
        return judge(unit, native, is_full)
    except MemoryError:
        return KernelVerdict(Outcome.NOT_JUDGED, "too large to check: its memory")


def _native_side(folder: Path, unit: Unit) -> Side:
    forms = [_form(folder, *each) for each in zip(unit.kernel_digests, unit.kernels, strict=True)]
    return Side(forms[0], forms[1] if len(forms) > 1 else None)


def _form(folder: Path, digest: str, kernel: KernelGraph) -> Kernel:
    """Return a kernel's native form, or its portable one if it has none."""
    library = folder / f"{digest}.so"
    if not library.exists():
        return build_portable(kernel)
    outputs = sum(output is not None for output in kernel.outputs)
    return load_native(digest, library.read_bytes(), len(kernel.inputs), outputs)


def _how_it_ended(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    if code == -signal.SIGALRM:
        return f"it ran longer than {LIMIT_S} s"
    return f"it ends its process: {signal.Signals(-code).name if code < 0 else f'status {code}'}"
