"""Our own products as functions to time, before any section is built."""

import contextlib
import ctypes
import mmap
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch

from rdukit.system.process import load_library
from rdukit_compiler.backend.cpp_compiler import find_cpp_compiler
from rdukit_compiler.backend.section_library import SOURCES

#: As inductor's code is compiled.
_FLAGS: Final = ("-std=c++20", "-O3", "-march=native", "-ffp-contract=off", "-fno-math-errno", "-w", "-shared", "-fPIC")

_PLACE, _NUMBER = ctypes.c_void_p, ctypes.c_int64
_MULTIPLY: Final = (_PLACE, _NUMBER, _NUMBER, _PLACE, _NUMBER, _NUMBER, _PLACE, _NUMBER, _NUMBER, _NUMBER)
_READ_ROWS: Final = (_PLACE, _PLACE, _PLACE, _NUMBER, _NUMBER, ctypes.c_int)
#: Of the functions of ``own_products.cpp``.
_ARGUMENTS: Final = {
    "multiply_few_rows": _MULTIPLY, "multiply_bf16": _MULTIPLY,
    "linear_bf16": (_PLACE, _NUMBER, _NUMBER, _PLACE, _PLACE, _NUMBER, _NUMBER, _NUMBER),
    "convolve_winograd": (_PLACE, _PLACE, _PLACE, _NUMBER, _NUMBER, _NUMBER, _NUMBER),
    "read_rows_float": _READ_ROWS, "read_rows_bf16": _READ_ROWS,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class OwnProducts:
    """Our products in one thread. All tensors are matrices; a's and b's elements may lie in any order."""

    _library: ctypes.CDLL

    def multiply(self, a: torch.Tensor, b: torch.Tensor, y: torch.Tensor) -> None:
        """Write a [m, k] times b [k, n] to the contiguous y [m, n]: all f32, few of m or of k, or bf16 to f32."""
        call = self._library.multiply_few_rows if a.dtype == torch.float32 else self._library.multiply_bf16
        call(a.data_ptr(), *a.stride(), b.data_ptr(), *b.stride(), y.data_ptr(), *y.shape, a.shape[1])

    def linear(self, x: torch.Tensor, w: torch.Tensor, y: torch.Tensor) -> None:
        """Write x [m, k] times w [n, k], turned, to the contiguous y [m, n], all bf16; w is contiguous and k even."""
        self._library.linear_bf16(x.data_ptr(), *x.stride(), w.data_ptr(), y.data_ptr(), *y.shape, x.shape[1])

    @property
    def has_bf16(self) -> bool:
        """Whether bf16 is multiplied: the processor has instructions for it that our products are written in."""
        return hasattr(self._library, "multiply_bf16")

    def convolve(self, x: torch.Tensor, w: torch.Tensor, y: torch.Tensor) -> None:
        """Write x [1, in, height, width], padded by one, convolved with w [out, in, 3, 3] to y: f32, w contiguous.

        x and y lie channels last.
        """
        call = self._library.convolve_winograd
        call(x.data_ptr(), w.data_ptr(), y.data_ptr(), x.shape[2], x.shape[3], x.shape[1], w.shape[0])

    def read_rows(self, x: torch.Tensor, w: torch.Tensor, y: torch.Tensor, is_sweep: bool) -> None:
        """Write w [n, k], f32 or bf16, times x [k] to y [n], both f32; w is read in one sweep, or asked for ahead."""
        call = self._library.read_rows_float if w.dtype == torch.float32 else self._library.read_rows_bf16
        call(x.data_ptr(), w.data_ptr(), y.data_ptr(), *w.shape, is_sweep)


def build_own_products() -> OwnProducts | None:
    """The products of ``native_source``; None if they cannot be compiled. Takes a second."""
    compiler = find_cpp_compiler()
    if compiler is None:
        return None
    with tempfile.TemporaryDirectory(prefix="rdukit-probe-") as folder:
        library = Path(folder, "probe.so")
        source = SOURCES / "own_products.cpp"
        done = subprocess.run([compiler, *_FLAGS, str(source), "-o", str(library)], capture_output=True, check=False)
        return load_own_products(library) if done.returncode == 0 else None


def load_own_products(path: Path) -> OwnProducts:
    """The products of a library that was compiled from ``own_products.cpp``."""
    library = load_library(path.read_bytes(), "rdukit-probe")
    for name, arguments in _ARGUMENTS.items():
        if hasattr(library, name):
            call = getattr(library, name)
            call.argtypes, call.restype = arguments, None
    return OwnProducts(library)


def huge_numbers(rows: int, columns: int) -> torch.Tensor:
    """An f32 matrix of ones that lies as large device memory does: in huge pages where the kernel gives them."""
    memory = mmap.mmap(-1, rows * columns * 4, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError, AttributeError):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.float32).view(rows, columns).fill_(1)
