"""Which way a matrix product goes on this machine: measured once, kept, chosen by dtype and shape.

A processor without bf16 instructions computes torch's bf16 products an order of magnitude slower than f32 ones, and
oneDNN's f32 products are twice as fast as the BLAS's on some processors and slower on others. Both pack their operands
as for many rows; where a dimension is as few as a small batch's, our own product may be faster. A single row takes
as long as reading the weights, and processors differ in how memory is read fastest. Source: ours.
"""

import json
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from enum import IntEnum
from pathlib import Path
from typing import Final

import torch
from torch.nn.functional import scaled_dot_product_attention

from rdukit.cpu import cpu_signature, has_avx512_bf16
from rdukit.errors import InvalidArgument
from rdukit.files import write_atomic
from rdukit.settings import home_folder, resolve
from rdukit_compiler.backend.cpp_compiler import find_cpp_compiler
from rdukit_compiler.backend.own_products import OwnProducts, build_own_products, huge_numbers
from rdukit_compiler.settings import ROUTES

logger = logging.getLogger(__name__)

#: Rows up to which a product reads its weights once, in a sweep.
FEW_ROWS: Final = 8
#: Rows, or terms of a sum, up to which our own f32 product may be used.
BATCH_ROWS: Final = 64
#: Rows up to which our own bf16 linear layer may be used; with more, oneDNN's copy of the weights is soon paid for.
LINEAR_ROWS: Final = 512
#: Products of fewer multiplications than this stay with ATen.
_LEAST_WEIGHTS: Final = 4096
#: How much faster another route than ATen's must be to be taken.
_MARGIN: Final = 1.15
#: The same for oneDNN's f32 products, which are as exact and cost nothing else.
_ONEDNN_MARGIN: Final = 1.02
#: Attention with its softmax takes so many times as long as its products.
_SOFTMAX: Final = 1.5
#: How much faster our own products must be, which are measured as they are used.
_FEW_MARGIN: Final = 1.02
_LINEAR_MARGIN: Final = 1.02

BF16_WAYS: Final = ("native", "f32")
F32_WAYS: Final = ("blas", "onednn")
FEW_WAYS: Final = ("f32", "own")
ROW_WAYS: Final = ("ahead", "sweep")
ATTENTION_WAYS: Final = ("aten", "own")
LINEAR_WAYS: Final = ("aten", "own")
CONVOLUTION_WAYS: Final = ("onednn", "winograd")
#: Of the weights that are read to measure, in f32: more than a last-level cache holds.
_READ_ROWS, _READ_WIDTH = 32768, 768


class Route(IntEnum):
    """A way of ``products.h``."""

    ROWS = 0
    FLOAT = 1
    ONEDNN = 2
    FEW = 3
    LINEAR = 4


@dataclass(frozen=True, slots=True)
class Routes:
    """How products of each dtype go: ``bf16`` native or through f32, ``f32`` by the BLAS or by oneDNN.

    ``few`` is for f32 products of few rows, or few terms a sum: as other f32 products, or our own. ``rows`` is how a
    row's product reads the weights: in one sweep, or asked for ahead (``row_linear.h``).
    ``attention`` is for bf16 attention of many queries: ATen's, or our own (``block_attention.h``). ``linear`` is for
    bf16 linear layers of some rows: ATen's, or our own (``bf16_linear.h``). ``convolution`` is for f32 convolutions of
    3 x 3 taps in inference: oneDNN's, or by fewer multiplications (``winograd.h``), where infinities become no numbers.
    """

    bf16: str = "native"
    f32: str = "blas"
    few: str = "f32"
    rows: str = "ahead"
    attention: str = "aten"
    linear: str = "aten"
    convolution: str = "onednn"

    def text(self) -> str:
        """As ``parse_routes`` takes it."""
        return ",".join(f"{dtype}={way}" for dtype, way in asdict(self).items())

    def definitions(self) -> Mapping[str, int]:
        """What the C++ of ``native_source`` is told: its macros and their values."""
        return {
            "RDUKIT_ROWS_SWEEP": int(self.rows == "sweep"),
            "RDUKIT_NATIVE_BF16": int(self.bf16 == "native"),
            "RDUKIT_OWN_LINEAR": int(self.linear == "own"),
            "RDUKIT_WINOGRAD": int(self.convolution == "winograd"),
        }

    def word(self) -> str:
        """In a word that is part of a path."""
        return "-".join(f"{dtype}-{way}" for dtype, way in asdict(self).items())


def choose_route(
    routes: Routes, dtype: str, m: int, n: int, k: int, in_rows: bool, is_row_major: bool = False
) -> Route | None:  # fmt: skip
    """The route of a product [m, k] x [k, n]; None is ATen's.

    Args:
        in_rows: the second operand is a weight matrix whose columns, of k elements, lie one after another.
        is_row_major: the elements of each of its rows lie side by side.
    """
    if dtype not in {"float32", "bfloat16"} or n * k < _LEAST_WEIGHTS or m < 1:
        return None
    if m <= FEW_ROWS and in_rows:
        return Route.ROWS
    if dtype == "bfloat16":
        if routes.linear == "own" and in_rows and FEW_ROWS < m <= LINEAR_ROWS and k % 2 == 0:
            return Route.LINEAR
        return Route.FLOAT if routes.bf16 == "f32" else None
    if routes.few == "own" and _is_few(m, k, in_rows, is_row_major):
        return Route.FEW
    return Route.ONEDNN if routes.f32 == "onednn" and m > FEW_ROWS else None


def _is_few(m: int, k: int, in_rows: bool, is_row_major: bool) -> bool:
    few = range(FEW_ROWS + 1, BATCH_ROWS + 1)
    return (m in few and (in_rows or is_row_major)) or (k in few and m > BATCH_ROWS and is_row_major)


def load_routes() -> Routes:
    """The routes of this machine: the setting's, or measured once for each processor and torch and kept.

    Raises:
        InvalidArgument: the setting names a way that does not exist, or not on this processor.
    """
    asked = resolve(ROUTES)
    if asked:
        routes = parse_routes(asked)
        if routes.linear == "own" and not has_avx512_bf16():
            raise InvalidArgument("route linear=own needs a processor with avx512_bf16; legal here: linear=aten")
        return routes
    path = home_folder() / "machine" / f"routes-{cpu_signature()}-{torch.__version__.replace('+', '-')}.json"
    kept = _read(path)
    if kept is None:
        measured = measure_routes()
        kept = _read(path) or measured  # another process may have measured meanwhile: all take one answer
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            words = asdict(kept)
            if find_cpp_compiler() is None:
                for own in ("few", "rows", "attention", "linear", "convolution"):
                    del words[own]  # not measured
            write_atomic(path, json.dumps(words).encode())
        except OSError as cause:
            logger.warning("routes are measured again next time path=%s reason=%s", path, cause)
    return kept


def parse_routes(text: str) -> Routes:
    """``bf16=f32,f32=blas`` as routes.

    Raises:
        InvalidArgument: a word that is not legal; the message lists those that are.
    """
    legal: Mapping[str, tuple[str, ...]] = {
        "bf16": BF16_WAYS, "f32": F32_WAYS, "few": FEW_WAYS, "rows": ROW_WAYS, "attention": ATTENTION_WAYS,
        "linear": LINEAR_WAYS, "convolution": CONVOLUTION_WAYS,
    }  # fmt: skip
    chosen: dict[str, str] = {}
    for part in text.split(","):
        dtype, _, way = part.strip().partition("=")
        if way not in legal.get(dtype, ()):
            ways = " or ".join(f"{d}={w}" for d, words in legal.items() for w in words)
            raise InvalidArgument(f"route {part.strip()!r} does not exist; legal: {ways}, joined by commas")
        chosen[dtype] = way
    return Routes(**chosen)


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


def _read(path: Path) -> Routes | None:
    try:
        value = json.loads(path.read_bytes())
        needed = {"bf16", "f32"} if find_cpp_compiler() is None else asdict(Routes()).keys()
        if not needed <= value.keys():
            return None
        return parse_routes(",".join(f"{dtype}={value[dtype]}" for dtype in asdict(Routes()) if dtype in value))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, InvalidArgument):
        return None
