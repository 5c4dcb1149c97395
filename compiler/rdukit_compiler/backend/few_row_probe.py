"""Our float product of few rows as a function to time, before any section is built."""

import ctypes
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

import torch

from rdukit_compiler.backend.cpp_compiler import find_cpp_compiler
from rdukit_compiler.backend.section_library import SOURCES

#: As inductor's code is compiled.
_FLAGS: Final = ("-std=c++20", "-O3", "-march=native", "-ffp-contract=off", "-fno-math-errno", "-w", "-shared", "-fPIC")

#: Writes a [m, k] times b [k, n] to the contiguous y [m, n].
Multiply = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]


def build_few_row_product() -> Multiply | None:
    """The product of ``native_source/few_row_product.h`` in one thread; None if it cannot be compiled. Takes a second.

    All three tensors are f32 matrices.
    """
    compiler = find_cpp_compiler()
    if compiler is None:
        return None
    with tempfile.TemporaryDirectory(prefix="rdukit-probe-") as folder:
        library = Path(folder, "probe.so")
        source = SOURCES / "few_row_probe.cpp"
        done = subprocess.run([compiler, *_FLAGS, str(source), "-o", str(library)], capture_output=True, check=False)
        if done.returncode != 0:
            return None
        multiply = ctypes.CDLL(str(library)).multiply_few_rows
    address, number = ctypes.c_void_p, ctypes.c_int64
    multiply.argtypes = [address, number, number, address, number, number, address, number, number, number]
    multiply.restype = None

    def run(a: torch.Tensor, b: torch.Tensor, y: torch.Tensor) -> None:
        multiply(a.data_ptr(), *a.stride(), b.data_ptr(), *b.stride(), y.data_ptr(), *y.shape, a.shape[1])

    return run
