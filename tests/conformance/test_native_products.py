"""Products, attention and weights of few bits as native sections against double precision, by every route.

The kernels of the cases that run are built together, those of like routes with one reading of torch's headers.
"""

import math
import shutil
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from rdukit.pef.units import Outcome, Unit
from rdukit.system.cpu import has_avx512_bf16
from rdukit_compiler.backend.choose_products import choose_products
from rdukit_compiler.backend.routes import Routes
from rdukit_compiler.operators.own_operators import int4_linear as traced_int4_linear
from rdukit_compiler.operators.own_operators import int8_linear as traced_int8_linear
from rdukit_compiler.torch_private import trace_aten, without_onednn
from rdukit_runtime.check.judge import Side, judge
from rdukit_runtime.engine.native import NativeKernel
from rdukit_runtime.engine.quantized_weights import (
    dequantize_groups,
    int4_linear,
    int8_linear,
    quantize_groups,
    quantize_rows,
)  # fmt: skip
from support import shows
from support.built_kernels import kernel_of
from support.native_libraries import chosen_values
from support.native_sections import SectionCase, Tensors, build_sections, numbers
from support.tiers import others_long

pytestmark = [shows("engine", "native"), pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")]

#: Relative to the largest value of the result: rounding once to the dtype, and sums of some hundred terms in f32.
_TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 8e-3}


def _attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def _masked(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    allowed = torch.where(mask > -0.5, mask, float("-inf")).index_fill(1, torch.arange(20, 37), float("-inf"))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=allowed)


#: What is computed, and the shapes of its inputs: odd sizes, views, few and many rows.
_PRODUCTS: dict[str, tuple[Callable[..., tuple[torch.Tensor, ...]], tuple[tuple[int, ...], ...]]] = {
    "one row": (lambda x, w, b: (F.linear(x, w, b),), ((1, 1, 96), (130, 96), (130,))),
    "three rows of odd length": (lambda x, w, b: (F.linear(x, w, b) + 1,), ((3, 77), (65, 77), (65,))),
    "seven strided rows": (lambda x, w: (F.linear(x.t(), w),), ((130, 7), (100, 130))),
    "twelve rows": (lambda x, w, b: (F.linear(x, w, b),), ((12, 333), (131, 333), (131,))),
    "fifteen rows of many weights": (lambda x, w: (F.linear(x, w),), ((15, 1030), (301, 1030))),
    "many rows": (lambda x, w, b: (F.gelu(F.linear(x, w, b)),), ((2, 33, 100), (133, 100), (133,))),
    "views of weights": (lambda a, b: (a @ b, a.t() @ a, b @ b.t()), ((64, 90), (90, 150))),
    "batches": (lambda a, b: (a @ b,), ((4, 33, 17), (4, 17, 50))),
    "attention": (lambda q, k, v: (_attention(q, k, v),), ((1, 4, 32, 16),) * 3),
    "attention of one row": (
        lambda q, k, v, m: (_masked(q, k, v, m),),
        ((2, 4, 1, 24), (2, 4, 37, 24), (2, 4, 37, 24), (1, 37)),
    ),
    "causal attention of three rows": (lambda q, k, v: (_attention(q, k, v),), ((1, 4, 3, 33),) * 3),
    "attention of many rows": (lambda q, k, v: (_attention(q, k, v),), ((2, 3, 70, 24),) * 3),
    "attention with a negative scale": (
        lambda q, k, v: (F.scaled_dot_product_attention(q, k, v, scale=-0.3),),
        ((1, 2, 19, 20),) * 3,
    ),
    "attention of odd sizes with a mask": (
        lambda q, k, v, m: (_masked(q, k, v, m),),
        ((2, 4, 65, 33), (2, 4, 37, 33), (2, 4, 37, 33), (1, 37)),
    ),
    "tall and deep": (lambda a, b: (a @ b,), ((1100, 4200), (4200, 70))),
    "one batch": (lambda a, b: (a @ b.transpose(1, 2).expand(1, 90, 70),), ((1, 3, 90), (1, 70, 90))),
    "convolution": (lambda x, w: (F.conv2d(x, w, padding=1).relu(),), ((2, 8, 16, 16), (12, 8, 3, 3))),
}
#: bf16 linear layers with rows of x and of weights beyond whole vectors, blocks and parts of the depth.
_LINEARS: dict[str, tuple[Callable[..., tuple[torch.Tensor, ...]], tuple[tuple[int, ...], ...]]] = {
    "layers of one input": (
        lambda x, w, b, v: (F.linear(x, w, b), F.linear(x, v), F.linear(x.tanh(), v)),
        ((130, 94), (100, 94), (100,), (47, 94)),
    ),
    "deep layer": (lambda x, w: (F.linear(x, w),), ((19, 4102), (13, 4102))),
    "layer of turned rows": (lambda x, w, b: (F.linear(x.t(), w, b),), ((66, 40), (333, 66), (333,))),
}
_PRODUCTS |= _LINEARS
_WAYS = {"f32": (torch.float32, Routes()), "onednn": (torch.float32, Routes(f32="onednn")),
         "bf16": (torch.bfloat16, Routes()), "bf16 by f32": (torch.bfloat16, Routes(bf16="f32")),
         "bf16 by onednn's f32": (torch.bfloat16, Routes(bf16="f32", f32="onednn")),
         "f32 in a sweep": (torch.float32, Routes(rows="sweep")),
         "bf16 in a sweep": (torch.bfloat16, Routes(rows="sweep")),
         "bf16 with our attention": (torch.bfloat16, Routes(attention="own")),
         "bf16 with our linear layers": (torch.bfloat16, Routes(linear="own"))}  # fmt: skip
_INT8_WAYS = {"native": Routes(), "by f32": Routes(bf16="f32"), "in a sweep": Routes(rows="sweep"),
              "by our linear layers": Routes(linear="own")}  # fmt: skip
if not has_avx512_bf16():  # these are written in its instructions
    del _WAYS["bf16 with our linear layers"], _INT8_WAYS["by our linear layers"]
#: The other products go the same way as in one of these.
_CASES = [
    (name, way)
    for way in _WAYS
    for name in _PRODUCTS
    if way in {"f32", "bf16 by f32", "bf16 by onednn's f32"}
    or (
        "attention" in name
        if "attention" in way
        else name in _LINEARS
        if "linear" in way
        else name in {"one row", "three rows of odd length", "twelve rows", "many rows", "views of weights"}
    )
]
#: One of each route that is compiled for itself but oneDNN's and the sweep, and attention.
_SHORT = {
    ("three rows of odd length", "f32"), ("one row", "bf16"), ("views of weights", "bf16 by f32"),
    ("attention of odd sizes with a mask", "bf16 with our attention"),
    ("layers of one input", "bf16 with our linear layers"),
}  # fmt: skip
#: What single cases are about.
_SINGLE = {
    ("attention of one row", "bf16 with our attention"), ("attention of many rows", "bf16 with our attention"),
    ("attention of odd sizes with a mask", "bf16 with our attention"),
    ("layers of one input", "bf16 with our linear layers"),
}  # fmt: skip
#: Rows of x, their width, more than one span of exact sums among them, and the way.
_INT8_CASES = [
    (rows, width, dtype, way)
    for rows, width in ((1, 93), (7, 93), (40, 93), (1, 4200), (3, 8300), (40, 2054))
    for dtype in (torch.float32, torch.bfloat16)
    for way in _INT8_WAYS
]
#: The same of weights of four bits: parts of units and of groups of rows among them.
_INT4_CASES = [
    (rows, width, dtype, way)
    for rows, width in ((1, 96), (3, 288), (12, 160), (40, 96))
    for dtype in (torch.float32, torch.bfloat16)
    for way in _INT8_WAYS
    if way == "native" or (way == "by our linear layers" and rows > 8 and dtype == torch.bfloat16)
]


#: One row or few in few bits, one of several spans of exact sums, and many rows.
_SHORT_INT8 = {
    (7, 93, torch.bfloat16, "native"),
    (3, 8300, torch.float32, "native"),
    (40, 2054, torch.bfloat16, "by f32"),
}
_SHORT_INT4 = {
    (3, 288, torch.float32, "native"),
    (12, 160, torch.bfloat16, "native"),
    (40, 96, torch.bfloat16, "by our linear layers"),
}
_SINGLE_INT8 = {(7, 93, torch.bfloat16, "native")}
_SINGLE_INT4 = {(3, 288, torch.float32, "native"), (3, 288, torch.bfloat16, "native")}


def _int8_inputs(rows: int, dtype: torch.dtype, width: int = 93) -> list[torch.Tensor]:
    weight, scale = quantize_rows(numbers(70, width))
    return [numbers(rows, width).to(dtype), weight, scale, numbers(70).to(dtype)]


def _int4_inputs(rows: int, dtype: torch.dtype, width: int) -> list[torch.Tensor]:
    weight, scale = quantize_groups(numbers(70, width))
    return [numbers(rows, width).to(dtype), weight, scale, numbers(70).to(dtype)]


@pytest.fixture(scope="module")
def kernels(request: pytest.FixtureRequest) -> dict[str, NativeKernel]:
    cases: dict[str, SectionCase] = {}
    products = chosen_values(request, "name", "way") | _SINGLE
    narrow = chosen_values(request, "rows", "width", "dtype", "way") | _SINGLE_INT8 | _SINGLE_INT4
    for name, way in (case for case in _CASES if case in products):
        (function, shapes), (dtype, routes) = _PRODUCTS[name], _WAYS[way]
        cases[f"{name}, {way}"] = SectionCase(function, [numbers(*shape).to(dtype) for shape in shapes], routes)
    for rows, width, dtype, way in (case for case in _INT8_CASES if case in narrow):
        inputs = _int8_inputs(rows, dtype, width)
        cases[f"int8 {rows} {width} {dtype} {way}"] = SectionCase(
            lambda *t: (traced_int8_linear(*t),), inputs, _INT8_WAYS[way]
        )  # fmt: skip
    for rows, width, dtype, way in (case for case in _INT4_CASES if case in narrow):
        inputs = _int4_inputs(rows, dtype, width)
        cases[f"int4 {rows} {width} {dtype} {way}"] = SectionCase(
            lambda *t: (traced_int4_linear(*t),), inputs, _INT8_WAYS[way]
        )  # fmt: skip
    return build_sections(cases)


def _error(made: Tensors, exact: Tensors) -> float:
    return max(((a.double() - b).abs().max() / b.abs().max()).item() for a, b in zip(made, exact, strict=True))


@pytest.mark.parametrize(("name", "way"), others_long(_CASES, _SHORT))
@pytest.mark.parametrize("threads", others_long([1, 2], {2}))
def test_products_agree_with_double_precision(
    kernels: dict[str, NativeKernel], name: str, way: str, threads: int
) -> None:
    dtype, _ = _WAYS[way]
    function, shapes = _PRODUCTS[name]
    inputs = [numbers(*shape).to(dtype) for shape in shapes]
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        made = kernels[f"{name}, {way}"](inputs, {})
    finally:
        torch.set_num_threads(before)
    exact = function(*[tensor.double() for tensor in inputs])
    assert [(m.dtype, m.shape) for m in made] == [(dtype, e.shape) for e in exact]
    assert _error(made, exact) <= _TOLERANCE[dtype]


@pytest.mark.long
@pytest.mark.parametrize(("name", "way"), _CASES)
def test_the_kernel_check_refuses_none_of_them(kernels: dict[str, NativeKernel], name: str, way: str) -> None:
    graph = kernel_of(_PRODUCTS[name][0], [numbers(*shape).to(_WAYS[way][0]) for shape in _PRODUCTS[name][1]])
    verdict = judge(Unit(graph), Side(kernels[f"{name}, {way}"], None), is_full=True)
    assert verdict.outcome is Outcome.RIGHT, verdict.reason


@pytest.mark.parametrize(
    ("name", "dtype", "routes", "is_own"),
    [
        ("attention of one row", torch.float32, Routes(), True),
        ("attention of one row", torch.bfloat16, Routes(), True),
        ("attention of many rows", torch.bfloat16, Routes(), False),
        ("attention of many rows", torch.float32, Routes(attention="own"), False),
        ("attention of many rows", torch.bfloat16, Routes(attention="own"), True),
    ],
)
def test_attention_is_our_own_where_that_is_faster(name: str, dtype: torch.dtype, routes: Routes, is_own: bool) -> None:
    function, shapes = _PRODUCTS[name]
    with without_onednn():
        module = trace_aten(function, [numbers(*shape).to(dtype) for shape in shapes])
    choose_products(module, routes)
    called = [str(node.target) for node in module.graph.nodes if "attention" in str(node.target)]
    assert (called == ["rdukit.rdukit_attention.default"]) is is_own


@pytest.mark.skipif(not has_avx512_bf16(), reason="the processor has no AVX512-BF16")
def test_layers_of_one_input_pack_it_once_and_a_row_of_no_numbers_changes_no_other(
    kernels: dict[str, NativeKernel],
) -> None:
    name, way = "layers of one input", "bf16 with our linear layers"
    function, shapes = _LINEARS[name]
    inputs = [numbers(*shape).bfloat16() for shape in shapes]
    with without_onednn():
        module = trace_aten(function, inputs)
    choose_products(module, _WAYS[way][1])
    called = [str(node.target) for node in module.graph.nodes if "rdukit" in str(node.target)]
    assert called.count("rdukit.rdukit_packed_rows.default") == 2 and len(called) == 5
    plain = [made.clone() for made in kernels[f"{name}, {way}"](inputs, {})]
    inputs[0][77] = math.nan
    for made, before in zip(kernels[f"{name}, {way}"](inputs, {}), plain, strict=True):
        assert made[77].isnan().all()
        assert torch.equal(made[:77], before[:77]) and torch.equal(made[78:], before[78:])


@pytest.mark.parametrize("name", ["attention of one row", "attention of odd sizes with a mask"])
def test_attention_that_sees_nothing_is_zero(kernels: dict[str, NativeKernel], name: str) -> None:
    q, k, v, mask = (numbers(*shape).bfloat16() for shape in _PRODUCTS[name][1])
    (made,) = kernels[f"{name}, bf16 with our attention"]([q, k, v, torch.full_like(mask, -1)], {})
    assert torch.equal(made, torch.zeros_like(made))


@pytest.mark.parametrize(
    "name", ["attention of one row", "attention of odd sizes with a mask", "attention of many rows"]
)
def test_attention_of_what_is_no_number_is_none(kernels: dict[str, NativeKernel], name: str) -> None:
    q, *others = (numbers(*shape).bfloat16() for shape in _PRODUCTS[name][1])
    q[0, 1] = math.nan
    (made,) = kernels[f"{name}, bf16 with our attention"]([q, *others], {})
    assert made[0, 1].isnan().all() and not made[0, [0, 2]].isnan().any() and not made[1].isnan().any()


def test_attention_of_large_scores_sees_the_highest(kernels: dict[str, NativeKernel]) -> None:
    q, k, v = (numbers(*shape).bfloat16() for shape in _PRODUCTS["attention of many rows"][1])
    q, k = q * 1e6, k * 1e6  # scores are 1e12: their last bit is 1e5
    (made,) = kernels["attention of many rows, bf16 with our attention"]([q, k, v], {})
    assert _error([made], [_attention(q.double(), k.double(), v.double())]) <= _TOLERANCE[torch.bfloat16]


@pytest.mark.parametrize(("rows", "width", "dtype", "way"), others_long(_INT8_CASES, _SHORT_INT8))
def test_int8_weights_give_what_generated_code_gives(
    kernels: dict[str, NativeKernel], rows: int, width: int, dtype: torch.dtype, way: str
) -> None:
    x, w, scale, bias = _int8_inputs(rows, dtype, width)
    (made,) = kernels[f"int8 {rows} {width} {dtype} {way}"]([x, w, scale, bias], {})
    exact = F.linear(x.double(), w.double() * scale.double()[:, None], bias.double())
    assert _error([made], [exact]) <= _TOLERANCE[dtype]
    assert _error([int8_linear(x, w, scale, bias)], [exact]) <= _TOLERANCE[dtype]


@pytest.mark.parametrize(("rows", "width", "dtype", "way"), others_long(_INT4_CASES, _SHORT_INT4))
def test_weights_of_four_bits_give_the_product_of_what_they_stand_for(
    kernels: dict[str, NativeKernel], rows: int, width: int, dtype: torch.dtype, way: str
) -> None:
    x, w, scale, bias = _int4_inputs(rows, dtype, width)
    (made,) = kernels[f"int4 {rows} {width} {dtype} {way}"]([x, w, scale, bias], {})
    exact = F.linear(x.double(), dequantize_groups(w, scale).double(), bias.double())
    assert _error([made], [exact]) <= _TOLERANCE[dtype]
    assert _error([int4_linear(x, w, scale, bias)], [exact]) <= _TOLERANCE[dtype]


@pytest.mark.parametrize("value", [0.0, 1e-35, -3e38, math.inf, math.nan])
def test_int8_weights_take_rows_of_anynumbers(kernels: dict[str, NativeKernel], value: float) -> None:
    """A row is as large as its largest number, and no row changes another."""
    x, w, scale, bias = _int8_inputs(7, torch.bfloat16)
    x[3] = 0
    x[3, 5] = value
    (made,) = kernels[f"int8 7 93 {torch.bfloat16} native"]([x, w, scale, bias], {})
    others = [0, 1, 2, 4, 5, 6]
    exact = F.linear(x.double(), w.double() * scale.double()[:, None], bias.double())
    assert _error([made[others]], [exact[others]]) <= _TOLERANCE[torch.bfloat16]
    assert torch.allclose(made[3].double(), int8_linear(x, w, scale, bias)[3].double(), rtol=2e-2, equal_nan=True)


@pytest.mark.parametrize("value", [0.0, 2e-30, -3e38, math.inf, math.nan])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_of_four_bits_take_rows_of_anynumbers(
    kernels: dict[str, NativeKernel], dtype: torch.dtype, value: float
) -> None:
    x, w, scale, bias = _int4_inputs(3, dtype, 288)
    x[1] = numbers(288).to(dtype) * 2e-30 if value == 2e-30 else 0  # steps of steps below normal numbers
    x[1, 5] = value
    (made,) = kernels[f"int4 3 288 {dtype} native"]([x, w, scale, bias.zero_()], {})
    exact = F.linear(x.double(), dequantize_groups(w, scale).double())
    assert _error([made[::2]], [exact[::2]]) <= _TOLERANCE[dtype]
    if value == 2e-30:
        assert _error([made[1]], [exact[1]]) <= _TOLERANCE[dtype]
    assert torch.allclose(made[1].double(), int4_linear(x, w, scale, bias)[1].double(), rtol=2e-2, equal_nan=True)
