"""Which ways are fast on this machine: a few products and a convolution, each timed in the ways that it may go."""

import time
from collections.abc import Callable, Mapping
from typing import Final

import torch
from torch.nn.functional import scaled_dot_product_attention

from rdukit_compiler.backend.own_products import OwnProducts, build_own_products, huge_numbers
from rdukit_compiler.backend.routes import Routes

#: How much faster another route than ATen's must be to be taken.
_MARGIN: Final = 1.15
#: The same for oneDNN's f32 products, which are as exact and cost nothing else.
_ONEDNN_MARGIN: Final = 1.02
#: Attention with its softmax takes so many times as long as its products.
_SOFTMAX: Final = 1.5
#: How much faster our own products must be, which are measured as they are used.
_FEW_MARGIN: Final = 1.02
_LINEAR_MARGIN: Final = 1.02
#: Of the weights that are read to measure, in f32: more than a last-level cache holds.
_READ_ROWS, _READ_WIDTH = 32768, 768


def measure_routes() -> Routes:
    """Time the ways of a few products, in turn, in one thread; takes some seconds, most of it one compilation."""
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
    """Whether our product of few rows is faster than the chosen f32 way, in a training step of one layer."""
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
    """Whether our bf16 products for twelve heads, and a softmax, take less than ATen's attention."""
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
    """Whether our bf16 linear layers of a prompt's rows, with weights from memory, are faster than ATen's."""
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
    """Whether a convolution of a middle layer takes less by fewer multiplications."""
    x, w = torch.randn(1, 128, 32, 32).contiguous(memory_format=torch.channels_last), torch.randn(128, 128, 3, 3)
    y, turned = torch.empty_like(x), w.contiguous(memory_format=torch.channels_last)

    def by_onednn() -> None:
        torch.ops.mkldnn._convolution_pointwise(x, turned, None, [1, 1], [1, 1], [1, 1], 1, "none", [], "")

    took = _time_in_turn({"winograd": lambda: products.convolve(x, w, y), "onednn": by_onednn})
    return took["winograd"] * _MARGIN < took["onednn"]


def _is_sweep_faster(products: OwnProducts) -> bool:
    """Whether a row's products with weights from memory, f32 and bf16, are faster in one sweep."""
    wide = huge_numbers(_READ_ROWS, _READ_WIDTH)
    narrow = wide.view(torch.bfloat16).view(-1, _READ_WIDTH)
    x = torch.ones(_READ_WIDTH)
    y = torch.empty(len(narrow))

    def read(is_sweep: bool) -> None:
        products.read_rows(x, wide, y, is_sweep)
        products.read_rows(x, narrow, y, is_sweep)

    took = _time_in_turn({"ahead": lambda: read(False), "sweep": lambda: read(True)})
    return took["sweep"] < took["ahead"]


def _time_in_turn(ways: Mapping[str, Callable[[], object]]) -> dict[str, float]:
    """Least processor seconds of each, of nine calls; a way that this torch lacks takes forever."""
    samples: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(10):
        for name, run in ways.items():
            began = time.thread_time()
            try:
                run()
            except (RuntimeError, AttributeError):
                samples[name].append(float("inf"))
            samples[name].append(time.thread_time() - began)
    return {name: min(values[1:]) for name, values in samples.items()}
