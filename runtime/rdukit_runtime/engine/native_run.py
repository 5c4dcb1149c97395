"""Consecutive native steps of a plan as one call: slots of tensors in, slots of tensors out."""

import ctypes
from array import array
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

import torch

from rdukit.errors import SectionFailed
from rdukit_runtime.engine.native import NativeKernel, NativeSteps, fill_handles, take_handles
from rdukit_runtime.engine.plans import PlanStep, section_failed


class SectionTimes(list[tuple[int, float]]):
    """Sections and their times in flat lists; a native run adds its own as one block. The list itself stays empty."""

    def __init__(self) -> None:
        super().__init__()
        #: Sections that ran, in order, and their ns.
        self.ids = array("q")
        self.ns = array("q")

    def append(self, pair: tuple[int, float]) -> None:
        """Add a section and its seconds."""
        self.ids.append(pair[0])
        self.ns.append(round(pair[1] * 1e9))

    def take(self, ids: bytes, durations: "ctypes.Array[ctypes.c_int64]") -> None:
        """Add sections, as 64-bit integers, and their ns."""
        self.ids.frombytes(ids)
        self.ns.frombytes(bytes(durations))

    def cut(self, count: int) -> None:
        """Keep the first ``count`` sections."""
        del self.ids[count:], self.ns[count:]


class NativeRun:
    """Steps whose kernels are all native.

    Args:
        steps: at least one. persistent: slots whose tensors stay the same from load to unload.
    """

    def __init__(self, steps: Sequence[PlanStep], persistent: Set[int]) -> None:
        self.steps = tuple(steps)
        self._ids = array("q", (step.section.id for step in steps)).tobytes()
        made: set[int] = set()
        external: dict[int, None] = {}
        freed: set[int] = set()
        rows = []
        for step in steps:
            external.update((slot, None) for slot in step.inputs if slot not in made and slot not in persistent)
            made.update(slot for slot in step.outputs if slot not in persistent)
            freed.update(step.freed)
            written = [position for position, _ in step.written]
            assert isinstance(step.kernel, NativeKernel)
            rows.append((step.kernel, step.inputs, step.outputs, written, step.freed))
        self._native = NativeSteps(rows)
        #: Persistent slots, whose handles are made once.
        self.persistent = {slot for step in steps for slot in (*step.inputs, *step.outputs)} & set(persistent)
        self._external = tuple(external)
        self._taken = tuple(slot for slot in external if slot in freed)
        self._passing = tuple(made | set(external))
        self._live = tuple(sorted(made - freed))
        self._rest = tuple(slot for slot in external if slot not in freed and slot not in made)

    def run(self, slots: list[torch.Tensor | None], handles: Any, seconds: list[tuple[int, float]] | None) -> None:
        """Run all steps; their results are in ``slots`` afterwards.

        Args:
            handles: array with a handle per slot; those of persistent slots are filled.
            seconds: gets the host seconds of each section; ``None``: no measurement.
        Raises:
            SectionFailed: a section failed, with its number and the reason; the steps' results are lost.
        """
        if self._external:
            fill_handles(handles, self._external, [slots[slot] for slot in self._external])  # type: ignore[misc]
            for slot in self._taken:
                slots[slot] = None
        durations = None if seconds is None else (ctypes.c_int64 * len(self._native))()
        try:
            self._native.run(handles, durations)
        except RuntimeError as cause:
            raise self._failure(handles, str(cause)) from None
        for slot, tensor in zip(self._live, take_handles(handles, self._live), strict=True):
            slots[slot] = tensor
        if self._rest:
            take_handles(handles, self._rest)
        if seconds is not None and durations is not None:
            if isinstance(seconds, SectionTimes):
                seconds.take(self._ids, durations)
            else:
                seconds.extend((step.section.id, ns / 1e9) for step, ns in zip(self.steps, durations, strict=True))

    @property
    def is_closed(self) -> bool:
        """True if it takes nothing that an earlier run left behind."""
        return not self._external

    def bind(self, slots: list[torch.Tensor | None], handles: Any) -> Callable[[], None]:
        """Return ``run`` without measuring, as a call without arguments."""
        call, live = self._native.bind(handles), self._live

        def run() -> None:
            if call():
                raise self._failure(handles, self._native.error)
            for slot, tensor in zip(live, take_handles(handles, live), strict=True):
                slots[slot] = tensor

        return run

    def _failure(self, handles: Any, reason: str) -> SectionFailed:
        take_handles(handles, [slot for slot in self._passing if handles[slot]])
        return section_failed(self.steps[self._native.failed_step].section, reason)


class HandleTable:
    """A tensor handle for each slot of a program; persistent slots' handles are kept, and freed with the table."""

    def __init__(self, count: int) -> None:
        self.handles = (ctypes.c_void_p * count)()
        #: The table's own handles, by slot; ``replace`` may put others in their place.
        self._kept: dict[int, int] = {}

    def keep(self, slots: Set[int], tensors: Sequence[torch.Tensor | None] | Mapping[int, torch.Tensor]) -> None:
        """Create the missing handles of persistent slots."""
        new = [slot for slot in sorted(slots) if not self.handles[slot]]
        fill_handles(self.handles, new, [tensors[slot] for slot in new])  # type: ignore[misc]
        self._kept.update((slot, int(self.handles[slot] or 0)) for slot in new)

    def replace(self, slots: Sequence[int], others: Sequence[int | None]) -> None:
        """Put handles that the table does not own into slots. ``None`` restores the table's own, if it has one."""
        handles, kept = self.handles, self._kept
        for slot, handle in zip(slots, others, strict=True):
            handles[slot] = handle or kept.get(slot)

    def renew(self, tensors: Mapping[int, torch.Tensor]) -> None:
        """Rebuild the table's handles of persistent slots after their tensors have moved."""
        held = [slot for slot in tensors if slot in self._kept]
        take_handles(self.handles, held)
        for slot in held:
            del self._kept[slot]
        self.keep(set(held), {slot: tensors[slot] for slot in held})

    def __del__(self) -> None:
        for slot, handle in self._kept.items():
            self.handles[slot] = handle
        if self._kept:
            take_handles(self.handles, list(self._kept))
            self._kept = {}


def group_steps(steps: Sequence[PlanStep], persistent: Set[int]) -> tuple["PlanStep | NativeRun", ...]:
    """Return the steps in order, with consecutive native ones joined."""
    parts: list[PlanStep | NativeRun] = []
    native: list[PlanStep] = []
    for step in steps:
        if isinstance(step.kernel, NativeKernel):
            native.append(step)
            continue
        if native:
            parts.append(NativeRun(native, persistent))
            native = []
        parts.append(step)
    if native:
        parts.append(NativeRun(native, persistent))
    return tuple(parts)
