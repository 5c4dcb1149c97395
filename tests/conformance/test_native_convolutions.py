"""Convolutions of native sections against torch: what follows one becomes part of it, and images lie channels last.

The kernels of the cases that run are built together, those of one way with one reading of torch's headers.
"""

import math
import shutil
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from rdukit.pef.units import Outcome, Unit
from rdukit_compiler.backend.choose_convolutions import choose_convolutions, may_fuse
from rdukit_compiler.backend.choose_products import choose_products
from rdukit_compiler.backend.routes import Routes
from rdukit_compiler.torch_private import trace_aten, without_onednn
from rdukit_runtime.check.judge import Side, judge
from rdukit_runtime.engine.native import NativeKernel
from support import shows
from support.built_kernels import kernel_of
from support.native_libraries import chosen_values
from support.native_sections import TracedSection, build_traced
from support.tiers import others_long

pytestmark = [shows("engine", "native"), pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")]

Tensors = Sequence[torch.Tensor]
#: Relative to the largest value of the result: sums of some hundred f32 terms, twice; bf16 rounds each layer's result.
_TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1.6e-2}


def _numbers(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, generator=generator)


def _norm(x: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
    """A batch norm with kept statistics: weight, bias, mean, and a variance that is made positive."""
    weight, bias, mean, variance = parameters
    return F.batch_norm(x, mean, variance.abs() + 0.5, weight, bias, False, 0.1, 1e-5)


def _block(x: torch.Tensor, w: torch.Tensor, *norm: torch.Tensor, **how: Any) -> torch.Tensor:
    return _norm(F.conv2d(x, w, **how), *norm).relu()


def _unet(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, up: torch.Tensor, bias: torch.Tensor, c: torch.Tensor,
          *norm: torch.Tensor) -> tuple[torch.Tensor, ...]:  # fmt: skip
    """A skip connection that also leaves the section, a pooling, a transposed convolution, a concatenation."""
    fine = _block(x, a, *norm, padding=1)
    coarse = F.conv2d(F.max_pool2d(fine, 2), b, padding=1).relu()
    joined = torch.cat([fine, F.conv_transpose2d(coarse, up, bias, 2)], 1)
    return fine, _block(joined, c, *norm, padding=1), joined.mean((2, 3))


_FOUR = ((12,),) * 4
#: What is computed, and the shapes of its inputs: odd sizes, strides, one channel, one row, views of the results.
_CASES: dict[str, tuple[Callable[..., tuple[torch.Tensor, ...]], tuple[tuple[int, ...], ...]]] = {
    "with all that follows": (lambda x, w, *n: (_block(x, w, *n, padding=1),), ((2, 5, 13, 11), (12, 5, 3, 3), *_FOUR)),
    "with bias, strides and dilation": (
        lambda x, w, b, *n: (_norm(F.conv2d(x, w, b, (2, 1), (2, 3), (1, 2)), *n),),
        ((1, 8, 12, 17), (12, 8, 5, 3), (12,), *_FOUR),
    ),
    "of one channel": (lambda x, w, *n: (_block(x, w, *n),), ((2, 1, 9, 7), (12, 1, 3, 3), *_FOUR)),
    "of one column to one channel": (
        lambda x, w, v, b: (F.conv2d(F.conv2d(x, w, padding=(1, 0)).relu(), v, b),),
        ((2, 6, 9, 1), (12, 6, 3, 1), (1, 12, 1, 1), (1,)),
    ),
    "of one channel and one point": (
        lambda x, w, *n: (_block(x, w, *n).flatten(1),),
        ((3, 1, 4, 4), (12, 1, 4, 4), *_FOUR),
    ),
    "a residual block": (
        lambda x, w, *n: ((_norm(F.conv2d(_block(x, w, *n, padding=1), w, padding=1), *n) + x).relu(),),
        ((2, 12, 9, 8), (12, 12, 3, 3), *_FOUR),
    ),
    "whose result is used before the norm": (
        lambda x, w, *n: ((made := F.conv2d(x, w)), _norm(made, *n).relu(), F.conv2d(x, w).relu()),
        ((1, 4, 7, 7), (12, 4, 1, 1), *_FOUR),
    ),
    "beside grouped ones": (
        lambda x, w, g: (F.conv2d(F.conv2d(x, w, padding=1).relu(), g, groups=12, padding=1).relu(),),
        ((1, 4, 8, 8), (12, 4, 3, 3), (12, 1, 3, 3)),
    ),
    "up and down": (
        _unet,
        ((1, 3, 16, 12), (12, 3, 3, 3), (24, 12, 3, 3), (24, 8, 2, 2), (8,), (12, 20, 3, 3), *_FOUR),
    ),
}  # fmt: skip
_WIDE = ((32,),) * 4
#: Channels in whole vectors, which fewer multiplications take: odd sizes, all paddings, several parts.
_WINOGRAD: dict[str, tuple[Callable[..., tuple[torch.Tensor, ...]], tuple[tuple[int, ...], ...]]] = {
    "two of whole vectors": (
        lambda x, w, *n: ((_norm(F.conv2d(_block(x, w, *n, padding=1), w, padding=1), *n) + x).relu(),),
        ((2, 32, 9, 7), (32, 32, 3, 3), *_WIDE),
    ),
    "without padding": (lambda x, w, b: (F.conv2d(x, w, b).relu(),), ((1, 32, 8, 11), (64, 32, 3, 3), (64,))),
    "of many squares": (
        lambda x, w, *n: (_block(x, w, *n, padding=(1, 2)),), ((2, 64, 31, 42), (32, 64, 3, 3), *_WIDE)
    ),
    "of one result": (lambda x, w: (F.conv2d(x, w).relu(),), ((3, 16, 3, 3), (32, 16, 3, 3))),
}  # fmt: skip
_CASES |= _WINOGRAD
_WAYS = {
    "f32": (torch.float32, Routes()),
    "bf16 by f32": (torch.bfloat16, Routes(bf16="f32")),
    "f32 by winograd": (torch.float32, Routes(convolution="winograd")),
    "bf16 by winograd": (torch.bfloat16, Routes(bf16="f32", convolution="winograd")),
}
#: The others differ in shapes only.
_ALL = [
    (name, way)
    for name in _CASES
    for way in _WAYS
    if name in (_WINOGRAD.keys() | {"up and down"} if "winograd" in way else _CASES.keys() - _WINOGRAD.keys())
    and ("bf16" not in way or name in {"a residual block", "up and down", "two of whole vectors"})
]
#: The rest differs in sizes, and in what follows a convolution.
_SHORT = {
    ("up and down", "f32"), ("a residual block", "bf16 by f32"), ("two of whole vectors", "f32 by winograd"),
}  # fmt: skip
#: What single cases are about.
_SINGLE = {("two of whole vectors", "f32 by winograd"), ("of one result", "f32 by winograd")}


def _inputs(name: str, way: str) -> list[torch.Tensor]:
    return [_numbers(*shape).to(_WAYS[way][0]) for shape in _CASES[name][1]]


def _traced(name: str, way: str) -> torch.fx.GraphModule:
    with without_onednn():
        module = trace_aten(_CASES[name][0], _inputs(name, way))
    assert may_fuse(module)
    assert choose_convolutions(module, _WAYS[way][1])
    return module


@pytest.fixture(scope="module")
def kernels(request: pytest.FixtureRequest) -> dict[str, NativeKernel]:
    sections = {}
    for name, way in sorted(chosen_values(request, "name", "way") | _SINGLE):
        routes, module = _WAYS[way][1], _traced(name, way)
        choose_products(module, routes)
        sections[f"{name}, {way}"] = TracedSection(module, _inputs(name, way), routes)
    return build_traced(sections)


@pytest.mark.parametrize(("name", "way"), others_long(_ALL, _SHORT))
@pytest.mark.parametrize("threads", others_long([1, 2], {2}))
def test_fused_convolutions_agree_with_double_precision(
    kernels: dict[str, NativeKernel], name: str, way: str, threads: int
) -> None:
    inputs, (dtype, _) = _inputs(name, way), _WAYS[way]
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        made = kernels[f"{name}, {way}"](inputs, {})
    finally:
        torch.set_num_threads(before)
    exact = _CASES[name][0](*[tensor.double() for tensor in inputs])
    assert [(m.dtype, m.shape) for m in made] == [(dtype, e.shape) for e in exact]
    error = max(((m.double() - e).abs().max() / e.abs().max()).item() for m, e in zip(made, exact, strict=True))
    assert error <= _TOLERANCE[dtype]


# Winograd's sums mix numbers: the check may refuse it for uneven ones.
@pytest.mark.long
@pytest.mark.parametrize(("name", "way"), [(name, way) for name, way in _ALL if "winograd" not in way])
def test_the_kernel_check_refuses_none_of_them(kernels: dict[str, NativeKernel], name: str, way: str) -> None:
    graph = kernel_of(_CASES[name][0], _inputs(name, way))
    verdict = judge(Unit(graph), Side(kernels[f"{name}, {way}"], None), is_full=True)
    assert verdict.outcome is Outcome.RIGHT, verdict.reason


@pytest.mark.parametrize(("name", "way"), others_long(_ALL, _SHORT))
def test_results_lie_as_the_portable_graph_leaves_them(kernels: dict[str, NativeKernel], name: str, way: str) -> None:
    inputs = _inputs(name, way)
    made, portable = kernels[f"{name}, {way}"](inputs, {}), _CASES[name][0](*inputs)
    assert [m.stride() for m in made] == [p.stride() for p in portable]


def test_an_image_of_no_numbers_changes_no_other(kernels: dict[str, NativeKernel]) -> None:
    x, *others = _inputs("two of whole vectors", "f32 by winograd")
    kernel = kernels["two of whole vectors, f32 by winograd"]
    (before,) = (made.clone() for made in kernel([x, *others], {}))
    x[1, 3, 4, 5] = math.nan
    (made,) = kernel([x, *others], {})
    assert torch.equal(made[0], before[0]) and made[1, :, 4, 5].isnan().all()


def test_fewer_multiplications_are_used_where_they_fit(kernels: dict[str, NativeKernel]) -> None:
    """They subtract neighbours from one another, so that an infinity becomes no number (``Routes``)."""
    x, w = _inputs("of one result", "f32 by winograd")
    x[1, 3, 1, 1] = math.inf
    (made,) = kernels["of one result, f32 by winograd"]([x, w], {})
    assert made[1].isnan().any() and not F.conv2d(x, w)[1].isnan().any()
    assert not made[[0, 2]].isnan().any()


def _names(module: torch.fx.GraphModule) -> list[str]:
    return [str(node.target).split(".")[1] for node in module.graph.nodes if "." in str(node.target)]


def test_norm_and_relu_are_gone_and_only_borders_are_turned() -> None:
    names = _names(_traced("up and down", "f32"))
    assert names.count("rdukit_convolution") == 3
    assert not {"convolution", "native_batch_norm", "relu"} & set(names)
    # In: the image. Out: two results, and what the mean reads.
    assert names.count("clone") == 4


@pytest.mark.parametrize(
    "function",
    [
        lambda x, w: (F.conv2d(x, w, groups=4).relu(),),
        lambda x, w: (F.conv2d(x, w.expand(4, 4, 3, 3)).sigmoid() * x.relu().sum(),),
        lambda x, w: (F.batch_norm(F.conv2d(x, w.expand(4, 4, 3, 3)), None, None, training=True),),
        lambda x, w: (x.relu_(), F.conv2d(x, w.expand(4, 4, 3, 3)).relu()),
    ],
    ids=["grouped", "no follower", "statistics of the batch", "changes its input"],
)
def test_other_convolutions_stay_as_they_are(function: Callable[..., tuple[torch.Tensor, ...]]) -> None:
    with without_onednn():
        module = trace_aten(function, [_numbers(2, 4, 6, 6), _numbers(4, 1, 3, 3)])
    assert not choose_convolutions(module, Routes())
    assert "convolution" in _names(module) and "rdukit_convolution" not in _names(module)


def test_bf16_stays_in_bf16_where_the_processor_has_it() -> None:
    name, way = "up and down", "bf16 by f32"
    with without_onednn():
        module = trace_aten(_CASES[name][0], _inputs(name, way))
    assert not choose_convolutions(module, Routes(bf16="native"))
