"""Native kernels of many cases built together: each alone would read torch's headers again."""

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from opdb.cases import Call, Case
from rdukit.pef.file import read_pef
from rdukit.pef.kernel import KernelGraph
from rdukit.pef.operators import GETITEM
from rdukit_compiler.backend.native import build_natives
from sambaflow import samba
from support.programs import compile_model


def build_together(cases: Sequence[tuple[Any, Case, Any]], folder: Path) -> None:
    """Put the native kernels of cases into the kernel cache, where judging each finds them.

    Args:
        cases: operator, case and sample. Those that are refused have no kernels.
    """
    kernels: dict[str, KernelGraph] = {}
    with _environment(RDUKIT_KERNELS="portable"):
        for op, case, sample in cases:
            with contextlib.suppress(Exception):  # judging says why
                kernels.update(_kernels_of(op, case, sample, folder))
    samba.session.reset()
    build_natives(kernels, lambda digest, error: None)


def _kernels_of(op: Any, case: Case, sample: Any, folder: Path) -> dict[str, KernelGraph]:
    samba.session.reset()
    call = Call(op, sample, parameters=case.training, rounded=case.dtype == "bf16")
    inputs = tuple(samba.from_torch_tensor(t.clone(), name=f"in{i}") for i, t in enumerate(call.given))
    samba.from_torch_model_(call)
    optimizer = samba.optim.SGD(call.parameters(), lr=0.0) if case.training else None
    options: dict[str, Any] = {"precision": "f32"} if case.dtype == "f32" else {}
    return read_pef(compile_model(call, inputs, optimizer, folder, optim_level=case.mode, **options)).kernels


def native_operators(pef: Path | str) -> list[str]:
    """Return the operators that a PEF computes natively."""
    loaded = read_pef(pef)
    return sorted({node.op for digest in loaded.natives for node in loaded.kernels[digest].nodes if node.op != GETITEM})


@contextlib.contextmanager
def without_builds() -> Iterator[None]:
    """Take native kernels that are in the cache, and build none: what could not be built is not tried in each case."""
    with _environment(RDUKIT_KERNELS="auto", CXX="no-compiler"):
        yield


@contextlib.contextmanager
def _environment(**variables: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
