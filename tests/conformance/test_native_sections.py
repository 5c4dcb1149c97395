"""Native sections against torch: products by every route, lists of sections, threads, failures.

The kernels of the cases that run are built together, those of like routes with one reading of torch's headers.
"""

import ctypes
import hashlib
import math
import shutil
import threading
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Sequence

import pytest
import torch
import torch.nn.functional as F

from rdukit.errors import SectionFailed
from rdukit.pef import Cost, Graph, Pef, Section, SectionResources, SectionType, Symbol, SymbolKind
from rdukit.pef.kernel import check_kernel
from rdukit.system.cpu import has_avx512_bf16
from rdukit_compiler.backend.choose_products import choose_products
from rdukit_compiler.backend.native_operators import interface_functions
from rdukit_compiler.backend.native_worker import common_kernel, write_section
from rdukit_compiler.backend.routes import Routes
from rdukit_compiler.backend.section_library import section_namespace
from rdukit_compiler.operators.own_operators import int4_linear as traced_int4_linear
from rdukit_compiler.operators.own_operators import int8_linear as traced_int8_linear
from rdukit_compiler.torch_private import trace_aten, without_onednn, write_code
from rdukit_node.status_page import HOST
from rdukit_runtime.engine.device_tensors import persistent_layout
from rdukit_runtime.engine.native import NativeKernel, NativeSteps, fill_handles, load_native, take_handles
from rdukit_runtime.engine.program import LoadedProgram
from rdukit_runtime.engine.quantized_weights import (
    dequantize_groups,
    int4_linear,
    int8_linear,
    quantize_groups,
    quantize_rows,
)  # fmt: skip
from rdukit_runtime.engine.threads import LeasedThreads
from support import shows
from support.native_libraries import chosen_values, compile_once
from support.tiers import others_long

pytestmark = [shows("engine", "native"), pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")]

Tensors = Sequence[torch.Tensor]
#: Relative to the largest value of the result: rounding once to the dtype, and sums of some hundred terms in f32.
_TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 8e-3}


def _numbers(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, generator=generator)


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


def _build(
    cases: dict[str, tuple[Callable[..., tuple[torch.Tensor, ...]], Tensors, Routes]],
) -> dict[str, NativeKernel]:
    sections: dict[Routes, dict[str, str]] = defaultdict(dict)
    #: Code that goes one way is compiled once: case → the one that has it.
    first: dict[str, str] = {}
    for name, (function, inputs, routes) in cases.items():
        with without_onednn():
            module = trace_aten(function, inputs)
        choose_products(module, routes)
        code = section_namespace("section", *write_code(module, inputs, interface_functions(), threads=2))
        like = next((other for other in sections if other.definitions() == routes.definitions()), routes)
        first[name] = next((other for other, known in sections[like].items() if known == code), name)
        sections[like].setdefault(first[name], code)
    digests = {name: hashlib.sha256(f"test {name}".encode()).hexdigest() for name in first.values()}
    libraries = {}
    for routes, codes in sections.items():
        found = compile_once({digests[name]: code for name, code in codes.items()}, routes.definitions())
        libraries.update(found)
    kernels = {}
    for name in digests:
        function, inputs, _ = cases[name]
        outputs = 1 if name.startswith("int") else len(function(*inputs))
        kernels[name] = load_native(digests[name], libraries[digests[name]], len(inputs), outputs)
    return {name: kernels[other] for name, other in first.items()}


def _int8_inputs(rows: int, dtype: torch.dtype, width: int = 93) -> list[torch.Tensor]:
    weight, scale = quantize_rows(_numbers(70, width))
    return [_numbers(rows, width).to(dtype), weight, scale, _numbers(70).to(dtype)]


def _int4_inputs(rows: int, dtype: torch.dtype, width: int) -> list[torch.Tensor]:
    weight, scale = quantize_groups(_numbers(70, width))
    return [_numbers(rows, width).to(dtype), weight, scale, _numbers(70).to(dtype)]


@pytest.fixture(scope="module")
def kernels(request: pytest.FixtureRequest) -> dict[str, NativeKernel]:
    cases: dict[str, tuple[Callable[..., tuple[torch.Tensor, ...]], Tensors, Routes]] = {}
    products = chosen_values(request, "name", "way") | _SINGLE
    narrow = chosen_values(request, "rows", "width", "dtype", "way") | _SINGLE_INT8 | _SINGLE_INT4
    for name, way in (case for case in _CASES if case in products):
        (function, shapes), (dtype, routes) = _PRODUCTS[name], _WAYS[way]
        cases[f"{name}, {way}"] = (function, [_numbers(*shape).to(dtype) for shape in shapes], routes)
    for rows, width, dtype, way in (case for case in _INT8_CASES if case in narrow):
        inputs = _int8_inputs(rows, dtype, width)
        cases[f"int8 {rows} {width} {dtype} {way}"] = (
            lambda *t: (traced_int8_linear(*t),), inputs, _INT8_WAYS[way]
        )  # fmt: skip
    for rows, width, dtype, way in (case for case in _INT4_CASES if case in narrow):
        inputs = _int4_inputs(rows, dtype, width)
        cases[f"int4 {rows} {width} {dtype} {way}"] = (
            lambda *t: (traced_int4_linear(*t),), inputs, _INT8_WAYS[way]
        )  # fmt: skip
    pair = [_numbers(8), _numbers(8)]
    cases["sum and product"] = (lambda a, b: (a + b, a * b), pair, Routes())
    cases["twice"] = (lambda a: (a + 1,) * 2, [_numbers(8)], Routes())
    cases["lookup"] = (lambda t, i: (t[i] + 1,), [_numbers(5, 4), torch.tensor([1, 2])], Routes())
    cases["long"] = (lambda a: (a @ a @ a @ a,), [_numbers(700, 700)], Routes())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # inductor's own, as it is imported
        return _build(cases)


def _error(made: Tensors, exact: Tensors) -> float:
    return max(((a.double() - b).abs().max() / b.abs().max()).item() for a, b in zip(made, exact, strict=True))


@pytest.mark.parametrize(("name", "way"), others_long(_CASES, _SHORT))
@pytest.mark.parametrize("threads", others_long([1, 2], {2}))
def test_products_agree_with_double_precision(
    kernels: dict[str, NativeKernel], name: str, way: str, threads: int
) -> None:
    dtype, _ = _WAYS[way]
    function, shapes = _PRODUCTS[name]
    inputs = [_numbers(*shape).to(dtype) for shape in shapes]
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        made = kernels[f"{name}, {way}"](inputs, {})
    finally:
        torch.set_num_threads(before)
    exact = function(*[tensor.double() for tensor in inputs])
    assert [(m.dtype, m.shape) for m in made] == [(dtype, e.shape) for e in exact]
    assert _error(made, exact) <= _TOLERANCE[dtype]


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
        module = trace_aten(function, [_numbers(*shape).to(dtype) for shape in shapes])
    choose_products(module, routes)
    called = [str(node.target) for node in module.graph.nodes if "attention" in str(node.target)]
    assert (called == ["rdukit.rdukit_attention.default"]) is is_own


@pytest.mark.skipif(not has_avx512_bf16(), reason="the processor has no AVX512-BF16")
def test_layers_of_one_input_pack_it_once_and_a_row_of_no_numbers_changes_no_other(
    kernels: dict[str, NativeKernel],
) -> None:
    name, way = "layers of one input", "bf16 with our linear layers"
    function, shapes = _LINEARS[name]
    inputs = [_numbers(*shape).bfloat16() for shape in shapes]
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
    q, k, v, mask = (_numbers(*shape).bfloat16() for shape in _PRODUCTS[name][1])
    (made,) = kernels[f"{name}, bf16 with our attention"]([q, k, v, torch.full_like(mask, -1)], {})
    assert torch.equal(made, torch.zeros_like(made))


@pytest.mark.parametrize(
    "name", ["attention of one row", "attention of odd sizes with a mask", "attention of many rows"]
)
def test_attention_of_what_is_no_number_is_none(kernels: dict[str, NativeKernel], name: str) -> None:
    q, *others = (_numbers(*shape).bfloat16() for shape in _PRODUCTS[name][1])
    q[0, 1] = math.nan
    (made,) = kernels[f"{name}, bf16 with our attention"]([q, *others], {})
    assert made[0, 1].isnan().all() and not made[0, [0, 2]].isnan().any() and not made[1].isnan().any()


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
def test_int8_weights_take_rows_of_any_numbers(kernels: dict[str, NativeKernel], value: float) -> None:
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
def test_weights_of_four_bits_take_rows_of_any_numbers(
    kernels: dict[str, NativeKernel], dtype: torch.dtype, value: float
) -> None:
    x, w, scale, bias = _int4_inputs(3, dtype, 288)
    x[1] = _numbers(288).to(dtype) * 2e-30 if value == 2e-30 else 0  # steps of steps below normal numbers
    x[1, 5] = value
    (made,) = kernels[f"int4 3 288 {dtype} native"]([x, w, scale, bias.zero_()], {})
    exact = F.linear(x.double(), dequantize_groups(w, scale).double())
    assert _error([made[::2]], [exact[::2]]) <= _TOLERANCE[dtype]
    if value == 2e-30:
        assert _error([made[1]], [exact[1]]) <= _TOLERANCE[dtype]
    assert torch.allclose(made[1].double(), int4_linear(x, w, scale, bias)[1].double(), rtol=2e-2, equal_nan=True)


def test_a_list_hands_values_on_and_empties_slots_after_their_last_use(kernels: dict[str, NativeKernel]) -> None:
    kernel = kernels["sum and product"]
    a, b = _numbers(8), torch.full((8,), 0.5)
    handles = (ctypes.c_void_p * 6)()
    fill_handles(handles, [0, 1], [a, b])
    steps = NativeSteps([(kernel, (0, 1), (2, 3), (), ()), (kernel, (2, 3), (4, 5), (), (2, 3))])
    durations = (ctypes.c_int64 * 2)()
    steps.run(handles, durations)
    assert [bool(handle) for handle in handles] == [True, True, False, False, True, True]
    total, product = take_handles(handles, [4, 5])
    assert torch.equal(total, (a + b) + (a * b)) and torch.equal(product, (a + b) * (a * b))
    assert min(durations) > 0
    take_handles(handles, [0, 1])


def test_an_output_with_a_place_of_its_own_is_copied_there(kernels: dict[str, NativeKernel]) -> None:
    kernel = kernels["sum and product"]
    a, place = _numbers(8), torch.zeros(8)
    handles = (ctypes.c_void_p * 3)()
    fill_handles(handles, [0, 1], [a, place])
    NativeSteps([(kernel, (0, 1), (1, 2), (0,), ())]).run(handles)
    assert torch.equal(place, a)
    take_handles(handles, [0, 1, 2])


def test_what_a_section_puts_out_twice_has_a_handle_in_each_slot(kernels: dict[str, NativeKernel]) -> None:
    twice, pair = kernels["twice"], kernels["sum and product"]
    a = _numbers(8)
    handles = (ctypes.c_void_p * 5)()
    fill_handles(handles, [0], [a])
    NativeSteps([(twice, (0,), (1, 2), (), ())]).run(handles)
    assert handles[1] != handles[2]
    NativeSteps([(twice, (0,), (1, 2), (), ()), (pair, (2, 0), (3, 4), (), (2,))]).run(handles)
    kept, total, _ = take_handles(handles, [1, 3, 4])
    assert torch.equal(kept, a + 1) and torch.equal(total, (a + 1) + a)
    places = [torch.zeros(8), torch.zeros(8)]
    fill_handles(handles, [1, 2], places)
    NativeSteps([(twice, (0,), (1, 2), (0, 1), ())]).run(handles)
    assert torch.equal(places[0], a + 1) and torch.equal(places[1], a + 1)
    take_handles(handles, [0, 1, 2])


def test_a_section_that_fails_says_why_and_later_ones_do_not_run(kernels: dict[str, NativeKernel]) -> None:
    lookup, pair = kernels["lookup"], kernels["sum and product"]
    handles = (ctypes.c_void_p * 5)()
    fill_handles(handles, [0, 1], [_numbers(5, 4), torch.tensor([1, 99])])
    steps = NativeSteps([(lookup, (0, 1), (2,), (), ()), (pair, (2, 2), (3, 4), (), ())])
    with pytest.raises(RuntimeError, match="index out of bounds"):
        steps.run(handles)
    assert steps.failed_step == 0 and not handles[2] and not handles[3]
    take_handles(handles, [0, 1])
    with pytest.raises(RuntimeError, match="no value"):
        steps.run(handles)


def test_other_python_threads_run_while_sections_compute(kernels: dict[str, NativeKernel]) -> None:
    kernel = kernels["long"]
    a = _numbers(700, 700)
    longest, ended = [0.0], threading.Event()

    def watch() -> None:
        last = time.perf_counter()
        while not ended.is_set():
            now = time.perf_counter()
            longest[0] = max(longest[0], now - last)
            last = now
            time.sleep(0)

    handles = (ctypes.c_void_p * 41)()
    fill_handles(handles, [0], [a])
    steps = NativeSteps([(kernel, (0,), (1 + i,), (), (1 + i,)) for i in range(40)])
    watcher = threading.Thread(target=watch)
    watcher.start()
    began = time.perf_counter()
    steps.run(handles)
    took = time.perf_counter() - began
    ended.set()
    watcher.join()
    take_handles(handles, [0])
    assert longest[0] < took / 2, "the watcher stood still while the list ran"


def test_tensors_live_no_longer_than_their_slots(kernels: dict[str, NativeKernel]) -> None:
    kernel = kernels["sum and product"]
    a, b = _numbers(8), _numbers(8)
    counts = a._use_count(), b._use_count()
    for _ in range(3):
        kernel([a, b], {})
    assert (a._use_count(), b._use_count()) == counts


def _lookup_program(kernel: NativeKernel) -> LoadedProgram:
    table, at = (
        Symbol("t", SymbolKind.PARAMETER, "float32", (5, 4), "float32", "t"),
        Symbol("i", SymbolKind.INPUT, "int64", (2,), "int64", "i"),
    )
    rows = Symbol("y", SymbolKind.OUTPUT, "float32", (2, 4), "float32", "y")
    section = Section(
        0, "fwd", SectionType.FWD, "g", "digest", ("t", "i"), ("y",), (), None, "default", "test",
        SectionResources(1, 1, 1, 8), Cost(10, 4, 8, 8, 8, 1e-6),
    )  # fmt: skip
    pef = Pef(
        name="p", mode="o3", arch="sn10", num_tiles=1, precision="f32", inference=True, compiler_version="0",
        torch_version="0", cpu_capability="", graphs={"g": Graph("g", ("i",), ("y",), (0,), {}, (), {})},
        symbols={s.name: s for s in (table, at, rows)}, sections=(section,), hyperparameters={}, signature={},
    )  # fmt: skip
    _, size = persistent_layout(pef)
    return LoadedProgram(pef, {"digest": kernel}, memoryview(bytearray(size)), threads=LeasedThreads(1))


def test_a_repeated_run_is_a_run_and_is_counted_as_one(kernels: dict[str, NativeKernel]) -> None:
    program = _lookup_program(kernels["lookup"])
    table = _numbers(5, 4)
    program.write("t", table)
    at, rows = torch.tensor([1, 2]), torch.empty(2, 4)
    graph = program.find_graph(None)
    call = program.repeated(graph, (0,), {}, [("i", at)], [("y", rows)])
    for numbers in ([1, 2], [4, 0]):
        at.copy_(torch.tensor(numbers))
        times = call()
        assert torch.equal(rows, table[at] + 1) and torch.equal(program.read("y"), rows)
        assert min(times) > 0
    page = program.page.read()
    assert (page.runs, page.sections, page.cycles) == (2, 2, 20)
    assert (page.pcie_rx, page.pcie_tx) == (2 * at.nbytes + table.nbytes, 4 * rows.nbytes)
    assert program.counters.runs == 2 and program.counters.host_seconds > 0
    program.run(graph, (0,), {})
    assert torch.equal(program.read("y"), rows)


def test_a_repeated_run_that_fails_says_where_and_the_next_one_works(kernels: dict[str, NativeKernel]) -> None:
    program = _lookup_program(kernels["lookup"])
    program.write("t", _numbers(5, 4))
    at, rows = torch.tensor([1, 99]), torch.empty(2, 4)
    call = program.repeated(program.find_graph(None), (0,), {}, [("i", at)], [("y", rows)])
    with pytest.raises(SectionFailed, match=r"section 'fwd' failed: .*index out of bounds"):
        call()
    assert program.page.read().phase == HOST
    at.fill_(3)
    call()
    assert torch.equal(rows, _numbers(5, 4)[at] + 1)


def test_the_kernel_that_workers_are_warmed_up_with_has_a_native_form() -> None:
    kernel = common_kernel()
    check_kernel(kernel)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # inductor's own, as it is imported
        code = write_section(kernel, Routes())
    assert "cpp_fused_" in code
