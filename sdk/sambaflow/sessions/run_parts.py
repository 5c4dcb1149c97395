"""Times of the parts of a session's runs, for ``snprof``. Ours, not the vendor's."""

from collections.abc import Sequence
from typing import Any

import torch

from rdukit_runtime.profile.recorders import find_recorder
from rdukit_runtime.profile.step import BreakdownRow, Recorder

#: Methods of (loaded PEF, application, program) and the rows that they count for.
_LOADED = {"resolve_scalars": BreakdownRow.ARGINS, "run": BreakdownRow.SAMBA}
_APPLICATION = {"run": BreakdownRow.PYTHON_TO_C}
_PROGRAM = {
    "choose_sections": BreakdownRow.RUN_SETUP, "_plan": BreakdownRow.RUN_SETUP, "_hold": BreakdownRow.ARGINS,
    "run": BreakdownRow.RUN_HW, "seed": BreakdownRow.XFER,
}  # fmt: skip


def time_parts(loaded: Any) -> None:
    """Time the parts of a ``LoadedPef``'s runs, if a profile was requested; otherwise do nothing."""
    recorder = find_recorder()
    if recorder is None:
        return
    handle = loaded.handle

    def timed_handle(name: str) -> Any:
        found = handle(name)
        if found._pull is not None:
            found._pull = recorder.timed(_reading_row(loaded.program, name), found._pull, "read")
        return found

    loaded.handle = timed_handle
    _wrap(recorder, loaded, _LOADED)
    _wrap(recorder, loaded.application, _APPLICATION)
    recorder.follow(loaded.application)
    _wrap(recorder, loaded.program, _PROGRAM)
    _time_transfers(recorder, loaded.program)


def _wrap(recorder: Recorder, owner: Any, methods: dict[str, BreakdownRow]) -> None:
    for name, row in methods.items():
        setattr(owner, name, recorder.timed(row, getattr(owner, name)))


def _time_transfers(recorder: Recorder, program: Any) -> None:
    """Convert and copy in two steps, so that each has its own time; unprofiled runs do both in one step."""
    write = recorder.timed(BreakdownRow.XFER, program.write_all)
    convert = recorder.timed(BreakdownRow.CONV_FUNC, torch.Tensor.to)

    def write_all(values: Sequence[tuple[str, torch.Tensor]]) -> None:
        write([(name, _converted(program, name, value, convert)) for name, value in values])

    program.write_all = write_all
    program.write = lambda name, value: write_all([(name, value)])
    for method in ("read", "gradient"):
        setattr(program, method, _timed_reader(recorder, program, getattr(program, method)))


def _converted(program: Any, name: str, value: torch.Tensor, convert: Any) -> torch.Tensor:
    symbol = program.pef.symbols.get(name)
    dtype = getattr(torch, symbol.dtype) if symbol is not None else value.dtype
    if value.dtype == dtype or value.is_floating_point() != dtype.is_floating_point:  # the program checks the second
        return value
    made: torch.Tensor = convert(value, dtype)
    return made


def _timed_reader(recorder: Recorder, program: Any, function: Any) -> Any:
    by_row = {row: recorder.timed(row, function) for row in (BreakdownRow.XFER, BreakdownRow.CONV_FUNC)}
    return lambda name: by_row[_reading_row(program, name)](name)


def _reading_row(program: Any, name: str) -> BreakdownRow:
    symbol = program.pef.symbols.get(name)
    return BreakdownRow.CONV_FUNC if symbol is not None and symbol.dtype != symbol.host_dtype else BreakdownRow.XFER
