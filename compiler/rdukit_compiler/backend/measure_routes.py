"""Finds the routes of this machine: the setting's, or measured once for each processor and torch, and kept in a file.

A few products and a convolution are each timed in their possible ways; our own are compiled as plain functions.
"""

import contextlib
import ctypes
import json
import logging
import mmap
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import torch
from torch.nn.functional import scaled_dot_product_attention

from rdukit.errors import InvalidArgument
from rdukit.files.atomic import write_atomic
from rdukit.settings import home_folder, resolve
from rdukit.system.cpu import cpu_signature, has_avx512_bf16
from rdukit.system.process import load_library
from rdukit_compiler.backend.routes import Routes, parse_routes
from rdukit_compiler.backend.section_library import SOURCES, find_cpp_compiler
from rdukit_compiler.settings import ROUTES

logger = logging.getLogger(__name__)

#: Compiler flags, the same as for inductor's code.
_FLAGS: Final = ("-std=c++20", "-O3", "-march=native", "-ffp-contract=off", "-fno-math-errno", "-w", "-shared", "-fPIC")

_PLACE, _NUMBER = ctypes.c_void_p, ctypes.c_int64
_MULTIPLY: Final = (_PLACE, _NUMBER, _NUMBER, _PLACE, _NUMBER, _NUMBER, _PLACE, _NUMBER, _NUMBER, _NUMBER)
_READ_ARGUMENTS: Final = (_PLACE, _PLACE, _PLACE, _NUMBER, _NUMBER, ctypes.c_int)
#: Types of the functions of ``own_products.cpp``.
_ARGUMENTS: Final = {
    "multiply_few_rows": _MULTIPLY, "multiply_bf16": _MULTIPLY,
    "linear_bf16": (_PLACE, _NUMBER, _NUMBER, _PLACE, _PLACE, _NUMBER, _NUMBER, _NUMBER),
    "convolve_winograd": (_PLACE, _PLACE, _PLACE, _NUMBER, _NUMBER, _NUMBER, _NUMBER),
    "read_rows_float": _READ_ARGUMENTS, "read_rows_bf16": _READ_ARGUMENTS,
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
        """Return whether bf16 is multiplied: the processor has instructions for it that our products are written in."""
        return hasattr(self._library, "multiply_bf16")

    def convolve(self, x: torch.Tensor, w: torch.Tensor, y: torch.Tensor) -> None:
        """Write x [1, in, height, width], padded by one, convolved with w [out, in, 3, 3] to y: f32, w contiguous.

        x and y lie channels last.
        """
        call = self._library.convolve_winograd
        call(x.data_ptr(), w.data_ptr(), y.data_ptr(), x.shape[2], x.shape[3], x.shape[1], w.shape[0])

    def read_rows(self, x: torch.Tensor, w: torch.Tensor, y: torch.Tensor, is_sweep: bool) -> None:
        """Write w [n, k], f32 or bf16, times x [k] to y [n], both f32; w is read in one sweep, or prefetched."""
        call = self._library.read_rows_float if w.dtype == torch.float32 else self._library.read_rows_bf16
        call(x.data_ptr(), w.data_ptr(), y.data_ptr(), *w.shape, is_sweep)


def build_own_products() -> OwnProducts | None:
    """Return the products of ``native_source``; None if they cannot be compiled. Takes a second."""
    compiler = find_cpp_compiler()
    if compiler is None:
        return None
    with tempfile.TemporaryDirectory(prefix="rdukit-probe-") as folder:
        library = Path(folder, "probe.so")
        source = SOURCES / "own_products.cpp"
        done = subprocess.run([compiler, *_FLAGS, str(source), "-o", str(library)], capture_output=True, check=False)
        return load_own_products(library) if done.returncode == 0 else None


def load_own_products(path: Path) -> OwnProducts:
    """Return the products of a library that was compiled from ``own_products.cpp``."""
    library = load_library(path.read_bytes(), "rdukit-probe")
    for name, arguments in _ARGUMENTS.items():
        if hasattr(library, name):
            call = getattr(library, name)
            call.argtypes, call.restype = arguments, None
    return OwnProducts(library)


def huge_numbers(rows: int, columns: int) -> torch.Tensor:
    """Return an f32 matrix of ones that lies as large device memory does: in huge pages where the kernel gives them."""
    memory = mmap.mmap(-1, rows * columns * 4, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError, AttributeError):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.float32).view(rows, columns).fill_(1)


#: How many times faster than ATen's another route must be to be chosen.
_MARGIN: Final = 1.15
#: The same for oneDNN's f32 products, which are as exact and cost nothing else.
_ONEDNN_MARGIN: Final = 1.02
#: Time of attention with its softmax, as a multiple of the time of its products.
_SOFTMAX: Final = 1.5
#: How many times faster our own products must be; they are measured in use.
_FEW_MARGIN: Final = 1.02
_LINEAR_MARGIN: Final = 1.02
#: Calls of each way, the first of which does not count, and calls of a way that takes ``_HOPELESS`` times as long as
#: another.
_CALLS: Final = 10
_LEAST_CALLS: Final = 3
_HOPELESS: Final = 3
#: Bytes of the f32 weights that are read to measure: more than a last-level cache holds.
_READ_ROWS, _READ_WIDTH = 32768, 768


def measure_routes() -> Routes:
    """Time all implementations of a few products alternately in one thread; takes some seconds, mostly for one
    compilation."""
    x, up, down = torch.randn(128, 768), torch.randn(3072, 768), torch.randn(768, 3072)
    own = build_own_products()
    narrow_x, narrow_up, narrow_down = x.bfloat16(), up.bfloat16(), down.bfloat16()

    def by_onednn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, w, None, "none", [], "")
        return made

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.no_grad():
            took = _time_in_turn(
                {
                    "blas": lambda: torch.mm(torch.mm(x, up.t()), down.t()),
                    "onednn": lambda: by_onednn(by_onednn(x, up), down),
                    "bf16": lambda: torch.mm(torch.mm(narrow_x, narrow_up.t()), narrow_down.t()),
                }
            )
            bf16 = "f32" if min(took["blas"], took["onednn"]) * _MARGIN < took["bf16"] else "native"
            f32 = "onednn" if took["onednn"] * _ONEDNN_MARGIN < took["blas"] else "blas"
            if own is None:
                return Routes(bf16, f32)
            few = "own" if _is_own_faster(own, f32) else "f32"
            rows = "sweep" if _is_sweep_faster(own) else "ahead"
            has_bf16 = bf16 == "native" and own.has_bf16
            attention = "own" if has_bf16 and _is_attention_faster(own) else "aten"
            linear = "own" if has_bf16 and _is_linear_faster(own) else "aten"
            convolution = "winograd" if _is_winograd_faster(own) else "onednn"
            return Routes(bf16, f32, few, rows, attention, linear, convolution)
    finally:
        torch.set_num_threads(threads)


def _is_own_faster(products: OwnProducts, f32: str) -> bool:
    """Return whether our product of few rows is faster than the chosen f32 way, in a training step of one layer."""
    x, w, dy = torch.randn(32, 784), torch.randn(512, 784), torch.randn(32, 512)
    forms = [(x, w.t()), (dy, w), (dy.t(), x)]
    made = [torch.empty(a.shape[0], b.shape[1]) for a, b in forms]

    def own() -> None:
        for (a, b), y in zip(forms, made, strict=True):
            products.multiply(a, b, y)

    def other() -> None:
        for (a, b), y in zip(forms, made, strict=True):
            if f32 == "onednn":
                torch.ops.mkldnn._linear_pointwise(a, b.t(), None, "none", [], "")
            else:
                torch.mm(a, b, out=y)

    took = _time_in_turn({"own": own, "other": other})
    return took["own"] * _FEW_MARGIN < took["other"]


def _is_attention_faster(products: OwnProducts) -> bool:
    """Return whether our bf16 products for twelve heads, and a softmax, take less than ATen's attention."""
    queries, keys, values = torch.randn(3, 12, 128, 64).bfloat16()
    scores, made = torch.empty(128, 128), torch.empty(128, 64)
    weights = torch.rand(128, 128).bfloat16()

    def own() -> None:
        for query, key, value in zip(queries, keys, values, strict=True):
            products.multiply(query, key.t(), scores)
            products.multiply(weights, value, made)

    took = _time_in_turn(
        {"own": own, "aten": lambda: scaled_dot_product_attention(queries[None], keys[None], values[None])}
    )
    return took["own"] * _SOFTMAX < took["aten"]


def _is_linear_faster(products: OwnProducts) -> bool:
    """Return whether our bf16 linear layers of a prompt's rows, with weights from memory, are faster than ATen's."""
    layers = huge_numbers(_READ_ROWS // 4, _READ_WIDTH).view(torch.bfloat16).view(-1, 2048, _READ_WIDTH)
    x, y = torch.ones(128, _READ_WIDTH).bfloat16(), torch.empty(128, 2048).bfloat16()

    def own() -> None:
        for w in layers:
            products.linear(x, w, y)

    def aten() -> None:
        for w in layers:
            torch.mm(x, w.t(), out=y)

    took = _time_in_turn({"own": own, "aten": aten})
    return took["own"] * _LINEAR_MARGIN < took["aten"]


def _is_winograd_faster(products: OwnProducts) -> bool:
    """Return whether a middle layer's convolution is faster in Winograd's form, with fewer multiplications."""
    x, w = torch.randn(1, 128, 32, 32).contiguous(memory_format=torch.channels_last), torch.randn(128, 128, 3, 3)
    y, turned = torch.empty_like(x), w.contiguous(memory_format=torch.channels_last)

    def by_onednn() -> None:
        torch.ops.mkldnn._convolution_pointwise(x, turned, None, [1, 1], [1, 1], [1, 1], 1, "none", [], "")

    took = _time_in_turn({"winograd": lambda: products.convolve(x, w, y), "onednn": by_onednn})
    return took["winograd"] * _MARGIN < took["onednn"]


def _is_sweep_faster(products: OwnProducts) -> bool:
    """Return whether a row's products with weights from memory, f32 and bf16, are faster in one sweep."""
    wide = huge_numbers(_READ_ROWS, _READ_WIDTH)
    narrow = wide.view(torch.bfloat16).view(-1, _READ_WIDTH)
    x = torch.ones(_READ_WIDTH)
    y = torch.empty(len(narrow))

    def read(is_sweep: bool) -> None:
        products.read_rows(x, wide, y, is_sweep)
        products.read_rows(x, narrow, y, is_sweep)

    took = _time_in_turn({"ahead": lambda: read(False), "sweep": lambda: read(True)})
    return took["sweep"] < took["ahead"]


def _time_in_turn(
    ways: Mapping[str, Callable[[], object]], clock: Callable[[], float] = time.thread_time
) -> dict[str, float]:
    """Return the minimum processor seconds of each in nine calls; infinity for a way that this torch lacks.

    A way that is much slower than another is called three times only: without bf16 instructions, bf16 takes seven times
    as long as f32, and would take most of the measuring time.
    """
    samples: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(_CALLS):
        best = min(min(values[1:], default=float("inf")) for values in samples.values())
        for name, run in ways.items():
            if number >= _LEAST_CALLS and min(samples[name][1:]) > _HOPELESS * best:
                continue
            began = clock()
            try:
                run()
            except (RuntimeError, AttributeError):
                samples[name].append(float("inf"))
            else:
                samples[name].append(clock() - began)
    return {name: min(values[1:]) for name, values in samples.items()}


def load_routes() -> Routes:
    """Return the routes of this machine: the setting's, or measured once for each processor and torch and kept.

    Raises:
        InvalidArgument: the setting names a route that does not exist, or that this processor lacks.
    """
    asked = resolve(ROUTES)
    if asked:
        routes = parse_routes(asked)
        if routes.linear == "own" and not has_avx512_bf16():
            raise InvalidArgument("route linear=own needs a processor with avx512_bf16; expected linear=aten")
        return routes
    path = home_folder() / "machine" / f"routes-{cpu_signature()}-{torch.__version__.replace('+', '-')}.json"
    kept = _read(path)
    if kept is None:
        measured = measure_routes()
        kept = _read(path) or measured  # another process may have measured meanwhile: all processes use one result
        try:
            words = asdict(kept)
            if find_cpp_compiler() is None:
                for own in ("few", "rows", "attention", "linear", "convolution"):
                    del words[own]  # not measured
            write_atomic(path, json.dumps(words).encode())
        except OSError as cause:
            logger.warning("routes are measured again next time path=%s reason=%s", path, cause)
    return kept


def _read(path: Path) -> Routes | None:
    try:
        value = json.loads(path.read_bytes())
        needed = {"bf16", "f32"} if find_cpp_compiler() is None else asdict(Routes()).keys()
        if not needed <= value.keys():
            return None
        return parse_routes(",".join(f"{dtype}={value[dtype]}" for dtype in asdict(Routes()) if dtype in value))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, InvalidArgument):
        return None
