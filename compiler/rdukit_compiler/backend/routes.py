"""Routes of matrix products by dtype and shape, given the ways that are fast on a machine (``measure_routes``).

A processor without bf16 instructions computes torch's bf16 products an order of magnitude slower than f32 ones, and
oneDNN's f32 products are twice as fast as the BLAS's on some processors and slower on others. Both pack their operands,
which pays for many rows; for a small batch our own product may be faster. The time of a single row is that of reading
the weights, and the fastest way to read memory differs between processors. Source: ours.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import IntEnum
from typing import Final

from rdukit.errors import InvalidArgument

#: Rows up to which a product reads its weights once, in a sweep, and attention takes its queries one by one.
FEW_ROWS: Final = 8
#: The same where no other product of ours is faster.
SOME_ROWS: Final = 16
#: Least rows for which our own f32 product of a small batch is faster.
_SMALL_BATCH: Final = 13
#: Rows, or terms of a sum, up to which our own f32 product may be used.
BATCH_ROWS: Final = 64
#: Rows up to which our own bf16 linear layer may be used; for more rows, oneDNN's copy of the weights pays.
LINEAR_ROWS: Final = 512
#: Products of fewer multiplications than this stay with ATen.
_LEAST_WEIGHTS: Final = 4096

BF16_WAYS: Final = ("native", "f32")
F32_WAYS: Final = ("blas", "onednn")
FEW_WAYS: Final = ("f32", "own")
ROW_WAYS: Final = ("ahead", "sweep")
ATTENTION_WAYS: Final = ("aten", "own")
LINEAR_WAYS: Final = ("aten", "own")
CONVOLUTION_WAYS: Final = ("onednn", "winograd")


class Route(IntEnum):
    """A way of ``products.h``."""

    ROWS = 0
    FLOAT = 1
    ONEDNN = 2
    FEW = 3
    LINEAR = 4


@dataclass(frozen=True, slots=True)
class Routes:
    """Routes of products by dtype: ``bf16`` native or through f32, ``f32`` by the BLAS or by oneDNN.

    ``few``: f32 products with few rows or few terms, computed like other f32 products, or by our own. ``rows``: how the
    product of a single row reads the weights: in one sweep, or prefetched (``row_linear.h``).
    ``attention``: bf16 attention of many queries, ATen's or our own (``block_attention.h``). ``linear``: bf16 linear
    layers of some rows, ATen's or our own (``bf16_linear.h``). ``convolution``: 3 x 3 f32 convolutions in inference,
    oneDNN's or Winograd's (``winograd.h``), which turns infinities into NaN.
    """

    bf16: str = "native"
    f32: str = "blas"
    few: str = "f32"
    rows: str = "ahead"
    attention: str = "aten"
    linear: str = "aten"
    convolution: str = "onednn"

    def text(self) -> str:
        """Return the text that ``parse_routes`` takes."""
        return ",".join(f"{dtype}={way}" for dtype, way in asdict(self).items())

    def definitions(self) -> Mapping[str, int]:
        """Return the macros of the C++ of ``native_source`` and their values."""
        return {
            "RDUKIT_ROWS_SWEEP": int(self.rows == "sweep"),
            "RDUKIT_NATIVE_BF16": int(self.bf16 == "native"),
            "RDUKIT_FLOAT_ONEDNN": int(self.f32 == "onednn"),
            "RDUKIT_OWN_LINEAR": int(self.linear == "own"),
            "RDUKIT_WINOGRAD": int(self.convolution == "winograd"),
        }

    def word(self) -> str:
        """Return a word for the routes that can be part of a path."""
        return "-".join(f"{dtype}-{way}" for dtype, way in asdict(self).items())


def choose_route(
    routes: Routes, dtype: str, m: int, n: int, k: int, in_rows: bool, is_row_major: bool = False
) -> Route | None:  # fmt: skip
    """Return the route of a product [m, k] x [k, n]; None is ATen's.

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
        if m <= SOME_ROWS and in_rows:
            return Route.ROWS
        return Route.FLOAT if routes.bf16 == "f32" else None
    if in_rows and m < (_SMALL_BATCH if routes.few == "own" else SOME_ROWS + 1):
        return Route.ROWS
    if routes.few == "own" and _is_few(m, k, in_rows, is_row_major):
        return Route.FEW
    return Route.ONEDNN if routes.f32 == "onednn" and m > FEW_ROWS else None


def _is_few(m: int, k: int, in_rows: bool, is_row_major: bool) -> bool:
    few = range(FEW_ROWS + 1, BATCH_ROWS + 1)
    return (m in few and (in_rows or is_row_major)) or (k in few and m > BATCH_ROWS and is_row_major)


def parse_routes(text: str) -> Routes:
    """Parse ``bf16=f32,f32=blas``.

    Raises:
        InvalidArgument: a route does not exist; the message lists those that do.
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
            raise InvalidArgument(f"unknown route {part.strip()!r}; expected some of {ways}, separated by commas")
        chosen[dtype] = way
    return Routes(**chosen)
