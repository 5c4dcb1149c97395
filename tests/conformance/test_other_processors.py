"""Our C++ for processors other than this one: it compiles for each, and what this one can run computes the same."""

import platform
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch.utils import cpp_extension

from rdukit_compiler.backend.measure_routes import OwnProducts, load_own_products
from rdukit_compiler.backend.section_library import SOURCES
from support import shows

pytestmark = [
    shows("engine", "native"),
    shows("engine", "native"),
    pytest.mark.skipif(
        shutil.which("g++") is None or platform.machine() != "x86_64", reason="no C++ compiler for x86-64"
    ),
]

#: Instruction sets, and how torch's headers call them.
_KINDS = {"x86-64": "DEFAULT", "x86-64-v3": "AVX2", "x86-64-v4": "AVX512"}
_FLAGS = ("-std=c++20", "-fopenmp", "-w", "-Wno-psabi")
_TOLERANCE = 1e-5


def _compile(*arguments: str) -> None:
    done = subprocess.run(["g++", *_FLAGS, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, "\n".join(line for line in done.stderr.splitlines() if "error" in line)


@pytest.mark.long
@pytest.mark.parametrize("kind", _KINDS)
def test_sections_compile_for_each_instruction_set(tmp_path: Path, kind: str) -> None:
    source, name = tmp_path / "all.cpp", _KINDS[kind]
    headers = ["section", *sorted(path.stem for path in SOURCES.glob("*.h") if path.stem != "section")]
    source.write_text("".join(f'#include "{header}.h"\n' for header in headers))
    vectors = () if name == "DEFAULT" else (f"-DCPU_CAPABILITY_{name}",)
    folders = [f"-I{folder}" for folder in (SOURCES, *cpp_extension.include_paths())]
    _compile("-fsyntax-only", f"-march={kind}", f"-DCPU_CAPABILITY={name}", *vectors, *folders, str(source))


@pytest.fixture(scope="module", params=["x86-64", "x86-64-v3"])
def products(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> OwnProducts:
    """Of processors that have fewer instructions."""
    flags = Path("/proc/cpuinfo").read_text()
    if request.param == "x86-64-v3" and not {"avx2", "fma", "bmi2"} <= set(flags.split()):
        pytest.skip("the processor has no AVX2")
    library = tmp_path_factory.mktemp("products") / "products.so"
    source = str(SOURCES / "own_products.cpp")
    _compile("-O3", "-shared", "-fPIC", f"-march={request.param}", source, "-o", str(library))
    return load_own_products(library)


def _numbers(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def _check(made: torch.Tensor, exact: torch.Tensor) -> None:
    assert (made.double() - exact).abs().max() <= _TOLERANCE * exact.abs().max()


@pytest.mark.long
def test_products_compute_the_same_with_fewer_instructions(products: OwnProducts) -> None:
    x, w = _numbers(20, 70), _numbers(90, 70)
    for a, b in ((x, w.t()), (w, x.t()), (x.t(), x)):
        made = torch.empty(a.shape[0], b.shape[1])
        products.multiply(a, b, made)
        _check(made, a.double() @ b.double())
    assert not products.has_bf16


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_are_read_the_same_with_fewer_instructions(products: OwnProducts, dtype: torch.dtype) -> None:
    x, w, y = _numbers(93), _numbers(70, 93).to(dtype), torch.empty(70)
    for is_sweep in (False, True):
        products.read_rows(x, w, y, is_sweep)
        _check(y, w.double() @ x.double())


def test_convolutions_compute_the_same_with_fewer_instructions(products: OwnProducts) -> None:
    x, w = _numbers(1, 32, 9, 12).contiguous(memory_format=torch.channels_last), _numbers(64, 32, 3, 3)
    made = torch.empty(1, 64, 9, 12).contiguous(memory_format=torch.channels_last)
    products.convolve(x, w, made)
    _check(made, F.conv2d(x.double(), w.double(), padding=1))
