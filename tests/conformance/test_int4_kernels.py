"""Products with weights of four bits for each kind of processor, compiled for it and run here against exact sums."""

import ctypes
import platform
import shutil
import subprocess
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from rdukit_runtime.engine.quantized_weights import dequantize_groups, quantize_groups
from support import shows
from support.tiers import others_long

pytestmark = [
    shows("text-weights", "native"),
    pytest.mark.skipif(shutil.which("g++") is None or platform.machine() != "x86_64", reason="no C++ compiler for x86"),
]

_DRIVER = r"""
#include "row_int4.h"
using namespace rdukit;
template <int M, bool IS_TWICE> static void rows(const float* x, const int4::Weights& w, float* y, bool is_float) {
#if RDUKIT_INT4_BYTES
  constexpr int EACH = IS_TWICE ? 2 : 1;
  if (auto given = is_float ? nullptr : int4::bytes_of<IS_TWICE>(x, w.k, M / EACH, w.k)) {
    int4::byte_rows<M>(*given, 0, w, 0, w.blocks(), true, [&](const int4::Part& part, const int4::Vector::Sums* sums) {
      for (int m = 0; m < M; m++)
        for (int i = 0; i < part.there; i++) y[m / EACH * w.n + part.row + i] += sums[m][i] * given->steps[m];
    });
    return;
  }
#endif
  int4::float_rows_of<IS_TWICE ? M / 2 : M>(x, w.k, w, 0, w.blocks(), [&](const int4::Part& part, const Lanes* sums) {
    for (int m = 0; m < (IS_TWICE ? M / 2 : M); m++)
      for (int i = 0; i < part.there; i++) y[m * w.n + part.row + i] = sums[m][i];
  });
}
// y [m, n], zero before: of m rows in bytes, of m rows in two of bytes each, or by floats.
extern "C" void run(const float* x, const uint8_t* data, const uint16_t* scales, float* y, long m, long n, long k,
                    int way) {
  int4::Weights w{data, (const bf16*)scales, n, k};
  if (way == 1) return m == 1 ? rows<2, true>(x, w, y, false) : m == 2 ? rows<4, true>(x, w, y, false) : (void)0;
  if (m == 1) rows<1, false>(x, w, y, way == 2);
  if (m == 2) rows<2, false>(x, w, y, way == 2);
  if (m == 4) rows<4, false>(x, w, y, way == 2);
#if defined(__AVX512VNNI__) && defined(__AVX512BW__)
  if (m == 8) rows<8, false>(x, w, y, way == 2);
#endif
}
"""
#: Architectures: whatever this processor is, one with 256-bit integers, and one without.
_KINDS = ["native", "x86-64-v3", "x86-64"]


@pytest.fixture(scope="module")
def libraries() -> dict[str, ctypes.CDLL]:
    """Return the libraries so far, by kind: each is compiled once."""
    return {}


def _library(kind: str, libraries: dict[str, ctypes.CDLL], folder: Path) -> ctypes.CDLL:
    if kind not in libraries:
        flags = Path("/proc/cpuinfo").read_text()
        if kind == "x86-64-v3" and " avx2 " not in flags:
            pytest.skip("the processor has no AVX2")
        source = folder / "driver.cpp"
        source.write_text(_DRIVER)
        headers = str(files("rdukit_compiler") / "backend" / "native_source")
        command = ["g++", "-std=c++20", "-O2", f"-march={kind}", "-w", "-shared", "-fPIC", f"-I{headers}"]
        subprocess.run([*command, str(source), "-o", str(folder / "driver.so")], check=True)
        libraries[kind] = ctypes.CDLL(str(folder / "driver.so"))
    return libraries[kind]


@pytest.mark.parametrize("kind", others_long(_KINDS, {"x86-64-v3"}))
def test_products_are_exact_sums_up_to_the_rounding_of_rows_and_floats(
    kind: str, libraries: dict[str, ctypes.CDLL], tmp_path: Path
) -> None:
    run = _library(kind, libraries, tmp_path).run
    torch.manual_seed(0)
    is_wide = kind == "native" and "avx512_vnni" in Path("/proc/cpuinfo").read_text()
    some = (1, 2, 4, 8) if is_wide else (1, 2, 4)
    for n in (1, 16, 75, 160):  # a part of a block, and parts after several
        for k in (32, 416):
            data, scales = quantize_groups(torch.randn(n, k))
            weights = dequantize_groups(data, scales).double()
            bits = scales.view(torch.int16).numpy()
            # Ways: 16 bits of a row's largest element, of which half a step is lost; twice as many; and floats.
            for way, rows, step in ((0, some, 1 / 32639), (1, (1, 2), 0), (2, some, 0)):
                for m in rows:
                    x = torch.randn(m, k)
                    y = np.zeros((m, n), np.float32)
                    pointers = [t.ctypes.data_as(ctypes.c_void_p) for t in (x.numpy(), data.numpy(), bits, y)]
                    run(*pointers, *map(ctypes.c_long, (m, n, k)), way)
                    exact = F.linear(x.double(), weights)
                    lost = 0.5 * step * x.double().abs().amax(1, keepdim=True) * weights.abs().sum(1)
                    bound = lost + 4e-7 * F.linear(x.double().abs(), weights.abs())  # some sums and roundings of floats
                    assert ((torch.from_numpy(y).double() - exact).abs() <= bound).all(), (n, k, way, m)


@pytest.mark.parametrize("kind", others_long(_KINDS, {"x86-64-v3"}))
def test_the_largest_numbers_do_not_overflow(kind: str, libraries: dict[str, ctypes.CDLL], tmp_path: Path) -> None:
    run = _library(kind, libraries, tmp_path).run
    for sign in (1.0, -1.0):
        data = torch.full((16, 2, 16), 0xFF, dtype=torch.uint8)  # 7 everywhere
        scales = torch.ones(16, 2, dtype=torch.bfloat16)
        x = torch.full((1, 64), sign)
        y = np.zeros((1, 16), np.float32)
        arrays = (x.numpy(), data.numpy(), scales.view(torch.int16).numpy(), y)
        run(*[t.ctypes.data_as(ctypes.c_void_p) for t in arrays], *map(ctypes.c_long, (1, 16, 64)), 0)
        assert np.allclose(y, sign * 7 * 64, rtol=1e-5)


@pytest.mark.parametrize("kind", others_long(_KINDS, {"x86-64-v3"}))
def test_what_the_first_rounding_leaves_never_overflows(
    kind: str, libraries: dict[str, ctypes.CDLL], tmp_path: Path
) -> None:
    """Elements next to the middle of two steps leave the most; the step itself is rounded, too."""
    torch.manual_seed(0)
    run = _library(kind, libraries, tmp_path).run
    data, scales = quantize_groups(1 + torch.rand(1, 256))
    weights = dequantize_groups(data, scales)
    for largest in (1.0195766687393188, 1.129815936088562, 1.424737811088562):  # their steps are rounded the most
        steps = torch.arange(256, dtype=torch.float64) - 32600  # negative ones, whose rest is positive
        x = ((steps - torch.linspace(0.494, 0.506, 256, dtype=torch.float64)) / 32639 * largest).float()[None]
        x[0, 0] = largest
        y = np.zeros((1, 1), np.float32)
        arrays = (x.numpy(), data.numpy(), scales.view(torch.int16).numpy(), y)
        run(*[t.ctypes.data_as(ctypes.c_void_p) for t in arrays], *map(ctypes.c_long, (1, 1, 256)), 1)
        exact = F.linear(x.double(), weights.double()).item()
        assert y.item() == pytest.approx(exact, rel=1e-6), largest
