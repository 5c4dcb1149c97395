"""Build the native kernels of many models together, with one import of torch's compiler and its headers."""

import functools
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from families import Case

#: Compiler of processes that shall build nothing.
NO_COMPILER: Final = "no-compiler"
Limit = Callable[[], None]


def build_together(
    cases: Sequence[tuple[Case, Sequence[str]]], mode: str, precision: str, limit: Limit, timeout_s: int
) -> None:
    """Build the native kernels of models into the kernel cache, for the later trial of each model.

    A model that is refused, or exceeds its time, gets no kernels; its trial reports the reason.

    Args:
        cases: models and stages. limit: called in each model's process, before it compiles.
    """
    with TemporaryDirectory(prefix="models-kernels-") as name:
        folder = Path(name)
        for case, stages in cases:
            _in_child(functools.partial(_collect, case, stages, mode, precision, folder, limit), timeout_s)
        _in_child(lambda: _build(folder), timeout_s * len(cases))


@contextmanager
def without_builds() -> Iterator[None]:
    """Use native kernels from the cache only, so that failed builds are not repeated."""
    former = os.environ.get("CXX")
    os.environ["CXX"] = NO_COMPILER
    try:
        yield
    finally:
        del os.environ["CXX"]
        if former is not None:
            os.environ["CXX"] = former


def write_quick_compiler(folder: Path) -> str:
    """Write a program that calls the C++ compiler with ``-O1`` in place of ``-O3``; returns its path."""
    path = folder.absolute() / "quick-g++"
    path.write_text(f'#!/bin/sh\nexec {os.environ.get("CXX") or "g++"} "$@" -O1\n')
    path.chmod(0o755)
    return str(path)


def _in_child(work: Callable[[], None], timeout_s: int) -> None:
    """Call ``work`` in a child process; after the timeout it is killed with all its children."""
    child = os.fork()
    if child == 0:
        try:
            os.setsid()
            signal.alarm(timeout_s)
            work()
            os._exit(0)
        except BaseException:  # noqa: BLE001 -- what others wrote raises anything
            traceback.print_exc(limit=-2)
            os._exit(1)
    os.waitpid(child, 0)


def _collect(case: Case, stages: Sequence[str], mode: str, precision: str, folder: Path, limit: Limit) -> None:
    from build import build
    from check import compile_kernels

    limit()
    os.environ["RDUKIT_KERNELS"] = "portable"
    built = build(case)
    for stage in stages:
        inputs = {**built.inputs, **(built.labels if stage == "training" else {})}
        try:
            kernels = compile_kernels(built.make, inputs, stage, mode, precision)
        except Exception as error:  # noqa: BLE001 -- trying the model tells
            print(f"no kernels of {case.name} {stage}: {type(error).__name__}", file=sys.stderr, flush=True)
            continue
        for digest, kernel in kernels.items():
            (folder / digest).write_bytes(kernel.to_json())


def _build(folder: Path) -> None:
    from rdukit.pef.kernel import kernel_from_json
    from rdukit_compiler.backend.native import build_natives

    kernels = {path.name: kernel_from_json(path.read_bytes()) for path in sorted(folder.iterdir())}

    def say(digest: str, error: str | None) -> None:
        if error:
            print(f"no native kernel {digest[:12]}: {error[:300]}", file=sys.stderr, flush=True)

    build_natives(kernels, say)
