"""Our own operators in native kernels: matrix products by a chosen route (``native_source/products.h``).

They exist only while a native kernel is built: the portable graph has ATen's products, ``rdukit.int8_linear`` and
``rdukit.lstm_layer``.
"""

from functools import cache
from typing import Any, Final

import torch

from rdukit_compiler.backend import lstm_layer, small_convolutions
from rdukit_compiler.backend.operators import define_operators
from rdukit_compiler.backend.routes import Route

#: Signature of each operator, and of the C function that inductor's code calls for it.
_SIGNATURES: Final = {
    "rdukit_product": (
        "(Tensor a, Tensor b, Tensor? bias, int route) -> Tensor",
        "AtenTensorHandle a, AtenTensorHandle b, AtenTensorHandle* bias, int64_t route, AtenTensorHandle* ret0",
    ),
    "rdukit_packed_rows": ("(Tensor x) -> Tensor", "AtenTensorHandle x, AtenTensorHandle* ret0"),
    "rdukit_packed_linear": (
        "(Tensor packed, Tensor w, Tensor? bias, int m) -> Tensor",
        "AtenTensorHandle packed, AtenTensorHandle w, AtenTensorHandle* bias, int64_t m, AtenTensorHandle* ret0",
    ),
    "rdukit_batch_product": (
        "(Tensor a, Tensor b) -> Tensor",
        "AtenTensorHandle a, AtenTensorHandle b, AtenTensorHandle* ret0",
    ),
    "rdukit_int8_linear": (
        "(Tensor x, Tensor w, Tensor scale, Tensor? bias) -> Tensor",
        "AtenTensorHandle x, AtenTensorHandle w, AtenTensorHandle scale, AtenTensorHandle* bias, "
        "AtenTensorHandle* ret0",
    ),
    "rdukit_attention": (
        "(Tensor q, Tensor k, Tensor v, Tensor? mask, float scale, bool is_causal) -> Tensor",
        "AtenTensorHandle q, AtenTensorHandle k, AtenTensorHandle v, AtenTensorHandle* mask, double scale, "
        "int32_t is_causal, AtenTensorHandle* ret0",
    ),
    "rdukit_convolution": (
        "(Tensor x, Tensor w, Tensor? scale, Tensor? shift, int stride_y, int stride_x, int padding_y, int padding_x, "
        "int dilation_y, int dilation_x, bool relu) -> Tensor",
        "AtenTensorHandle x, AtenTensorHandle w, AtenTensorHandle* scale, AtenTensorHandle* shift, int64_t stride_y, "
        "int64_t stride_x, int64_t padding_y, int64_t padding_x, int64_t dilation_y, int64_t dilation_x, "
        "int32_t relu, AtenTensorHandle* ret0",
    ),
    **small_convolutions.SIGNATURES,
}  # fmt: skip


def _product(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None, route: int) -> torch.Tensor:
    return a.new_empty((a.shape[0], b.shape[1]))


def _packed_rows(x: torch.Tensor) -> torch.Tensor:
    return x.new_empty((-(-x.shape[0] // 16) * 16, -(-x.shape[1] // 2)), dtype=torch.int32)


def _packed_linear(packed: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None, m: int) -> torch.Tensor:
    return w.new_empty((m, w.shape[0]))


def _batch_product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a.new_empty((a.shape[0], a.shape[1], b.shape[2]))


def _int8_linear(x: torch.Tensor, w: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return x.new_empty((x.shape[0], w.shape[0]))


def _attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, scale: float, is_causal: bool
) -> torch.Tensor:  # fmt: skip
    batch, heads, rows, width = q.shape
    return q.new_empty((batch, rows, heads, width)).transpose(1, 2)


def _convolution(
    x: torch.Tensor, w: torch.Tensor, scale: torch.Tensor | None, shift: torch.Tensor | None, stride_y: int,
    stride_x: int, padding_y: int, padding_x: int, dilation_y: int, dilation_x: int, relu: bool,
) -> torch.Tensor:  # fmt: skip
    rows = (x.shape[2] + 2 * padding_y - dilation_y * (w.shape[2] - 1) - 1) // stride_y + 1
    columns = (x.shape[3] + 2 * padding_x - dilation_x * (w.shape[3] - 1) - 1) // stride_x + 1
    return x.new_empty((x.shape[0], rows, columns, w.shape[0])).permute(0, 3, 1, 2)


_SHAPES: Final[dict[str, Any]] = {
    "rdukit_product": _product,
    "rdukit_packed_rows": _packed_rows,
    "rdukit_packed_linear": _packed_linear,
    "rdukit_batch_product": _batch_product,
    "rdukit_int8_linear": _int8_linear,
    "rdukit_attention": _attention,
    "rdukit_convolution": _convolution,
    **small_convolutions.SHAPES,
}


@cache
def _library() -> torch.library.Library:
    return define_operators({name: schema for name, (schema, _) in _SIGNATURES.items()}, _SHAPES)


def operator_named(name: str) -> Any:
    """The torch operator ``rdukit::<name>``, registered for tracing; it computes nothing itself."""
    _library()
    return getattr(torch.ops.rdukit, name).default


def interface_functions() -> dict[Any, list[str]]:
    """For inductor: each operator, and the declaration of the C function that computes it."""
    own = {name: (operator_named(name), parameters) for name, (_, parameters) in _SIGNATURES.items()}
    own |= {name: (made, lstm_layer.SIGNATURES[name][1]) for name, made in lstm_layer.operators().items()}
    return {made: [f"AOTITorchError aoti_torch_cpu_{name}({parameters})"] for name, (made, parameters) in own.items()}


def product(a: Any, b: Any, bias: Any, route: Route) -> tuple[Any, tuple[Any, ...]]:
    """Operator and arguments of a product [m, k] x [k, n] + [n] by ``route``."""
    return operator_named("rdukit_product"), (a, b, bias, int(route))
