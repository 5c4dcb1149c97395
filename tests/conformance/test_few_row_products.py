"""Float products of a small batch, and of its gradients, in native code against torch in double precision.

The kernels of the cases that run are built in one go (one reading of torch's headers).
"""

import shutil
from collections.abc import Callable, Iterator, Sequence

import pytest
import torch
import torch.nn.functional as F
from torch import fx

from rdukit.system.cpu import has_avx512_bf16
from rdukit_compiler.backend.choose_products import choose_products, may_change
from rdukit_compiler.backend.measure_routes import OwnProducts, build_own_products
from rdukit_compiler.backend.routes import Route, Routes
from rdukit_compiler.torch_private import trace_aten, without_onednn
from rdukit_runtime.engine.native import NativeKernel
from support import shows
from support.native_libraries import chosen_values
from support.native_sections import TracedSection, build_traced
from support.tiers import others_long

pytestmark = [shows("engine", "native"), pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")]

Tensors = Sequence[torch.Tensor]
#: Relative to the largest value of the result, in f32: sums of up to some thousand terms, in another order.
_TOLERANCE = 1e-5
_ROUTES = Routes(few="own")

#: Rows, inputs and outputs of a layer: round, odd, just above what is computed row by row, up to the most; deeper than
#: one part of a sum; narrower and wider than a vector's blocks.
_SIZES = [
    (32, 784, 512), (32, 512, 512), (9, 65, 70), (16, 300, 97), (17, 257, 65), (24, 130, 131), (31, 771, 33),
    (33, 64, 512), (47, 1030, 71), (63, 129, 255), (64, 128, 192), (40, 600, 7),
]  # fmt: skip


def _numbers(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def _layer(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor, dy: torch.Tensor) -> Tensors:
    """The layer with and without a bias, and its gradients."""
    return F.linear(x, w, bias), x @ w.t(), dy @ w, dy.t() @ x


def _layer_inputs(m: int, k: int, n: int) -> list[torch.Tensor]:
    return [_numbers(m, k), _numbers(n, k), _numbers(n), _numbers(m, n)]


def _turned(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> Tensors:
    """Left operands whose rows do not lie side by side, and a bias on a product with rows of weights."""
    return x.t() @ w, torch.addmm(v, x.t(), w), F.linear(x.t(), w.t(), v)


def _spread(x: torch.Tensor, w: torch.Tensor, dy: torch.Tensor) -> Tensors:
    """Views: every other row, a part of the columns, one row many times."""
    return x[::2] @ w, x[:20, 3:] @ w[3:], dy[:1].expand(30, dy.shape[1]) @ w.t(), dy[:, 1:].t() @ x


_CASES: dict[str, tuple[Callable[..., Tensors], list[torch.Tensor]]] = {
    **{f"{m} rows, {k} to {n}": (_layer, _layer_inputs(m, k, n)) for m, k, n in _SIZES},
    "turned": (_turned, [_numbers(300, 33), _numbers(300, 90), _numbers(90)]),
    "few columns": (
        lambda dy, x, v: (dy.t() @ x, dy.t() @ v),
        [_numbers(768, 256), _numbers(768, 40), _numbers(768, 3)],
    ),
    "views": (_spread, [_numbers(50, 201), _numbers(201, 83), _numbers(50, 83)]),
}
#: Odd, just above what is computed row by row, deeper than one part of a sum, and views.
_SHORT = {"9 rows, 65 to 70", "47 rows, 1030 to 71", "turned", "few columns", "views"}
#: What a single case is about.
_SINGLE = "32 rows, 784 to 512"


def _traced(function: Callable[..., Tensors], inputs: Tensors, routes: Routes) -> fx.GraphModule:
    with without_onednn():
        module = trace_aten(function, inputs)
    choose_products(module, routes)
    return module


def _few_products(module: fx.GraphModule) -> int:
    return sum("rdukit_product" in str(node.target) and node.args[3] == Route.FEW for node in module.graph.nodes)


@pytest.fixture(scope="module")
def kernels(request: pytest.FixtureRequest) -> dict[str, NativeKernel]:
    sections = {}
    for (name,) in sorted(chosen_values(request, "name") | {(_SINGLE,)}):
        function, inputs = _CASES[name]
        sections[name] = TracedSection(_traced(function, inputs, _ROUTES), inputs)
        assert _few_products(sections[name].module) > 0, name
    return build_traced(sections)


@pytest.fixture(params=others_long([1, 2], {2}))
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize("name", others_long(_CASES, _SHORT))
def test_few_rows_agree_with_double_precision(kernels: dict[str, NativeKernel], threads: int, name: str) -> None:
    function, inputs = _CASES[name]
    made, exact = kernels[name](inputs, {}), function(*[tensor.double() for tensor in inputs])
    for found, wanted in zip(made, exact, strict=True):
        assert found.shape == wanted.shape and found.dtype == torch.float32 and found.is_contiguous()
        assert (found.double() - wanted).abs().max() <= _TOLERANCE * wanted.abs().max()


def test_how_many_threads_compute_does_not_change_the_sums(kernels: dict[str, NativeKernel]) -> None:
    results, before = [], torch.get_num_threads()
    for count in (1, 2):
        torch.set_num_threads(count)
        results.append(kernels[_SINGLE](_CASES[_SINGLE][1], {}))
    torch.set_num_threads(before)
    assert all(torch.equal(one, two) for one, two in zip(*results, strict=True))


def test_products_of_many_rows_and_other_dtypes_stay_as_they_are() -> None:
    many, narrow = [_numbers(200, 300), _numbers(300, 100)], [_numbers(32, 300).double(), _numbers(300, 100).double()]
    assert _few_products(_traced(lambda a, b: (a @ b,), many, _ROUTES)) == 0
    assert _few_products(_traced(lambda a, b: (a @ b,), narrow, _ROUTES)) == 0
    few = [_numbers(32, 300), _numbers(300, 100)]
    assert _few_products(_traced(lambda a, b: (a @ b,), few, Routes())) == 0
    module = trace_aten(lambda a, b: (a @ b,), few)
    assert may_change(module, few, _ROUTES) and not may_change(module, few, Routes())


@pytest.fixture(scope="module")
def products() -> OwnProducts:
    """What is timed, compiled once."""
    built = build_own_products()
    assert built is not None
    return built


@pytest.mark.long
def test_what_is_timed_computes_the_product(products: OwnProducts) -> None:
    x, w = _numbers(20, 70), _numbers(90, 70)
    for a, b in ((x, w.t()), (w, x.t()), (x.t(), x)):
        made = torch.empty(a.shape[0], b.shape[1])
        products.multiply(a, b, made)
        exact = a.double() @ b.double()
        assert (made.double() - exact).abs().max() <= _TOLERANCE * exact.abs().max()


def test_what_is_timed_convolves(products: OwnProducts) -> None:
    x, w = _numbers(1, 32, 9, 12).contiguous(memory_format=torch.channels_last), _numbers(64, 32, 3, 3)
    made = torch.empty(1, 64, 9, 12).contiguous(memory_format=torch.channels_last)
    products.convolve(x, w, made)
    exact = F.conv2d(x.double(), w.double(), padding=1)
    assert (made.double() - exact).abs().max() <= _TOLERANCE * exact.abs().max()


@pytest.mark.skipif(not has_avx512_bf16(), reason="the processor has no AVX512-BF16")
def test_what_is_timed_computes_the_linear_layer(products: OwnProducts) -> None:
    assert products.has_bf16
    x, w, made = _numbers(20, 70).bfloat16(), _numbers(90, 70).bfloat16(), torch.empty(20, 90).bfloat16()
    products.linear(x, w, made)
    exact = x.double() @ w.double().t()
    assert (made.double() - exact).abs().max() <= 2**-8 * exact.abs().max()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("is_sweep", [False, True])
def test_what_is_timed_reads_all_rows(products: OwnProducts, dtype: torch.dtype, is_sweep: bool) -> None:
    x, w, y = _numbers(93), _numbers(70, 93).to(dtype), torch.empty(70)
    products.read_rows(x, w, y, is_sweep)
    exact = w.double() @ x.double()
    assert (y.double() - exact).abs().max() <= _TOLERANCE * exact.abs().max()
