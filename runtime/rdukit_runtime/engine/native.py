"""Loads native kernels: libraries with all state among their inputs. No compiler, no inductor needed.

Each library holds one section and the same list runner (``native_source/runner.h`` of the compiler). It calls
consecutive sections over slots of tensor handles, with the interpreter lock released.
"""

import ctypes
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import torch

from rdukit.errors import InvalidArgument, PefCorrupt
from rdukit.pef.file import LIST_RUNNER, section_symbol
from rdukit.pef.model import Pef
from rdukit.settings import SANITIZE, resolve
from rdukit.system.cpu import native_signature
from rdukit.system.process import load_library
from rdukit_runtime.engine.torch_private import alloc_handles, steal_handles

logger = logging.getLogger(__name__)

#: Kernels of this process by digest: the system's loader never really unloads a library, so neither do we.
_KERNELS: dict[str, "NativeKernel"] = {}

_ERROR_ROOM: Final = 1000

_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype, _pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
_capsule_of = ctypes.pythonapi.PyCapsule_New
_capsule_of.restype, _capsule_of.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


class NativeStep(ctypes.Structure):
    """``rdukit::Step``: one section bound to slots."""

    _fields_ = [
        ("section", ctypes.c_void_p),
        ("inputs", ctypes.c_void_p), ("outputs", ctypes.c_void_p), ("is_written", ctypes.c_void_p),
        ("freed", ctypes.c_void_p),
        ("input_count", ctypes.c_int32), ("output_count", ctypes.c_int32), ("freed_count", ctypes.c_int32),
        ("index", ctypes.c_int32),
    ]  # fmt: skip


class NativeKernel:
    """A kernel in a library. Callable as a kernel; ``NativeSteps`` calls several at once."""

    def __init__(self, address: int, run_list: Any, inputs: int, outputs: int) -> None:
        self.address = address
        self.run_list = run_list
        handles = (ctypes.c_void_p * (inputs + outputs))()
        slots = range(inputs + outputs)
        self._alone = NativeSteps([(self, tuple(slots)[:inputs], tuple(slots)[inputs:], (), ())])
        self._inputs = inputs
        self._handles = handles

    def __call__(self, inputs: Sequence[torch.Tensor], scalars: Mapping[str, float]) -> Sequence[torch.Tensor]:
        handles = type(self._handles)()
        fill_handles(handles, range(self._inputs), inputs)
        try:
            self._alone.run(handles)
            return take_handles(handles, range(self._inputs, len(handles)))
        finally:
            take_handles(handles, [slot for slot, held in enumerate(handles) if held])


class NativeSteps:
    """Sections with their slots, in the form that the runner takes.

    Args:
        steps: kernel, input slots, output slots, which outputs (positions) are copied to their slots' own memory, and
            slots that are empty afterwards.
    """

    def __init__(
        self,
        steps: Sequence[tuple[NativeKernel, Sequence[int], Sequence[int], Sequence[int], Sequence[int]]],
    ) -> None:
        self._run_list = steps[0][0].run_list
        self._keep: list[Any] = []
        made = [self._step(index, *step) for index, step in enumerate(steps)]
        self._steps = (NativeStep * len(made))(*made)
        self._error = ctypes.create_string_buffer(_ERROR_ROOM)
        self._failed = ctypes.c_int64()

    def _step(
        self, index: int, kernel: NativeKernel, inputs: Sequence[int], outputs: Sequence[int],
        written: Sequence[int], freed: Sequence[int],
    ) -> NativeStep:  # fmt: skip
        gone = set(freed)
        # A slot that is freed is handed over with its last appearance among the inputs.
        last = {slot: position for position, slot in enumerate(inputs) if slot in gone}
        bound = [~slot if last.get(slot) == position else slot for position, slot in enumerate(inputs)]
        others = [slot for slot in freed if slot not in last]
        is_written = [int(position in set(written)) for position in range(len(outputs))]
        columns = [(ctypes.c_int32 * len(c))(*c) for c in (bound, outputs, is_written, others)]
        self._keep += columns
        addresses = [ctypes.addressof(column) for column in columns]
        return NativeStep(kernel.address, *addresses, len(bound), len(outputs), len(others), index)

    def run(self, handles: Any, durations: Any = None) -> None:
        """Run all over ``handles``, an array of a tensor handle for each slot.

        Args:
            durations: an array of a 64-bit integer per step, to be filled with nanoseconds; or None.
        Raises:
            RuntimeError: a section failed, with its reason; ``failed_step`` says which. Later steps have not run.
        """
        failed = self._run_list(
            handles, self._steps, len(self._steps), durations, self._error, _ERROR_ROOM, ctypes.byref(self._failed)
        )
        if failed:
            raise RuntimeError(self.error)

    def bind(self, handles: Any) -> Callable[[], int]:
        """Return ``run`` over these handles without measurement, as a call without arguments; a result other than 0:
        see ``error``.
        """
        addresses = [ctypes.addressof(each) for each in (handles, self._steps, self._error, self._failed)]
        return partial(
            self._run_list, addresses[0], addresses[1], len(self._steps), None, addresses[2], _ERROR_ROOM, addresses[3]
        )

    @property
    def error(self) -> str:
        """Reason why the last run failed."""
        return self._error.value.decode(errors="replace")

    @property
    def failed_step(self) -> int:
        """Position of the step that ``run`` was in last."""
        return self._failed.value

    def __len__(self) -> int:
        return len(self._steps)


def fill_handles(handles: Any, slots: Sequence[int], tensors: Sequence[torch.Tensor]) -> None:
    """Put new handles of ``tensors`` into ``slots``; they keep the tensors alive until they are taken or consumed."""
    for slot, capsule in zip(slots, alloc_handles(list(tensors)), strict=True):
        handles[slot] = _pointer_of(capsule, None)


def take_handles(handles: Any, slots: Sequence[int]) -> list[torch.Tensor]:
    """Return the tensors in ``slots``, which are empty afterwards."""
    capsules = [_capsule_of(handles[slot], None, None) for slot in slots]
    for slot in slots:
        handles[slot] = None
    return steal_handles(capsules)


def why_not_native(pef: Pef, trusted: bool) -> str | None:
    """Return the reason why the PEF's libraries cannot be used here; None if they can."""
    if pef.torch_version != torch.__version__:
        return (
            f"they were built for torch {pef.torch_version}, but this is {torch.__version__}; rebuild them here with "
            "rdukit pef build"
        )
    if pef.cpu_capability != (here := native_signature()):
        return (
            f"they were built for processor {pef.cpu_capability}, but this is {here}; rebuild them here with rdukit "
            "pef build"
        )
    if not trusted:
        return (
            "another installation built them, and a library is executable code; rebuild them here with rdukit pef build"
        )
    return None


def load_native(digest: str, library: bytes, inputs: int, outputs: int) -> NativeKernel:
    """Load a library from memory and return its kernel; a kernel that this process has already is used again.

    Args:
        digest: digest of the library's kernel. inputs, outputs: numbers of the kernel's inputs and outputs.
    Raises:
        PefCorrupt: the library is not one of ours. InvalidArgument: kernels are to be sanitized, and cannot be here.
    """
    kernel = _KERNELS.get(digest)
    if kernel is None:
        _check_sanitizer()
        try:
            loaded = load_library(library, "rdukit-kernel")
            section, run_list = getattr(loaded, section_symbol(digest)), getattr(loaded, LIST_RUNNER)
        except (OSError, AttributeError) as cause:
            raise PefCorrupt(f"the native library of kernel {digest[:12]} cannot be loaded: {cause}") from cause
        run_list.argtypes = [ctypes.c_void_p] * 2 + [ctypes.c_int64] + [ctypes.c_void_p] * 2 + [
            ctypes.c_int64, ctypes.c_void_p,
        ]  # fmt: skip
        address = ctypes.cast(section, ctypes.c_void_p).value
        assert address is not None
        kernel = _KERNELS[digest] = NativeKernel(address, run_list, inputs, outputs)
    return kernel


def _check_sanitizer() -> None:
    """Refuse a sanitized library in a process without the sanitizer's own: it would end without a traceback."""
    if resolve(SANITIZE) and not hasattr(ctypes.CDLL(None), "__asan_init"):
        raise InvalidArgument(
            f"{SANITIZE.variable} is set, but AddressSanitizer's library was not loaded before this program; start it "
            "with `scripts/sanitize.py -- <command>`, or unset the variable"
        )
