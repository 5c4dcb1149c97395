"""Our own operators in native kernels: products by a chosen route, attention and convolutions (``native_source``).

These operators exist only while a native kernel is built. The portable graph has ATen's products,
``rdukit.int8_linear``, ``rdukit.int4_linear`` and ``rdukit.lstm_layer``.
"""

from functools import cache
from typing import Any, Final

import torch

from rdukit_compiler.backend.routes import Route
from rdukit_compiler.operators.naming import define_operators
from rdukit_compiler.operators.own_operators import LSTM_PARAMETERS, own_operator

_HANDLES: Final = "AtenTensorHandle {}, AtenTensorHandle {}, AtenTensorHandle* {}, "
_GEOMETRY: Final = "int64_t pad_y, int64_t pad_x, int64_t step_y, int64_t step_x, "

#: Schema and C parameters of a linear layer with quantized weights.
_LINEAR: Final = (
    "(Tensor x, Tensor w, Tensor scale, Tensor? bias) -> Tensor",
    "AtenTensorHandle x, AtenTensorHandle w, AtenTensorHandle scale, AtenTensorHandle* bias, AtenTensorHandle* ret0",
)

#: Operator → its schema, and the parameters of the C function that inductor's code calls for it.
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
    "rdukit_int8_linear": _LINEAR,
    "rdukit_int4_linear": _LINEAR,
    "rdukit_attention": (
        "(Tensor q, Tensor k, Tensor v, Tensor? mask, Tensor? texts, float scale, bool is_causal, "
        "int step_b, int step_h, int step_t) -> Tensor",
        "AtenTensorHandle q, AtenTensorHandle k, AtenTensorHandle v, AtenTensorHandle* mask, "
        "AtenTensorHandle* texts, double scale, int32_t is_causal, int64_t step_b, int64_t step_h, int64_t step_t, "
        "AtenTensorHandle* ret0",
    ),
    "rdukit_convolution": (
        "(Tensor x, Tensor w, Tensor? scale, Tensor? shift, int stride_y, int stride_x, int padding_y, int padding_x, "
        "int dilation_y, int dilation_x, bool relu) -> Tensor",
        "AtenTensorHandle x, AtenTensorHandle w, AtenTensorHandle* scale, AtenTensorHandle* shift, int64_t stride_y, "
        "int64_t stride_x, int64_t padding_y, int64_t padding_x, int64_t dilation_y, int64_t dilation_x, "
        "int32_t relu, AtenTensorHandle* ret0",
    ),
    # Convolutions of small samples in f32, [n, channels, width] or [n, channels, height, width]; a line has height 1.
    # ``bias`` is optional; ``is_rectified`` applies a ReLU.
    "rdukit_small_convolution": (
        "(Tensor x, Tensor w, Tensor? bias, int pad_y, int pad_x, int step_y, int step_x, bool is_rectified) -> Tensor",
        _HANDLES.format("x", "w", "bias") + _GEOMETRY + "int32_t is_rectified, AtenTensorHandle* ret0",
    ),
    # The gradients of weight and bias from dy, the output's gradient; elements count only where mask is above zero.
    "rdukit_small_convolution_weight": (
        "(Tensor x, Tensor dy, Tensor? mask, int pad_y, int pad_x, int step_y, int step_x, int taps_y, int taps_x)"
        " -> (Tensor, Tensor)",
        _HANDLES.format("x", "dy", "mask") + _GEOMETRY + "int64_t taps_y, int64_t taps_x, "
        "AtenTensorHandle* ret0, AtenTensorHandle* ret1",
    ),
    # The gradients of input, weight and bias.
    "rdukit_small_convolution_backward": (
        "(Tensor x, Tensor dy, Tensor? mask, int pad_y, int pad_x, int step_y, int step_x, Tensor w)"
        " -> (Tensor, Tensor, Tensor)",
        _HANDLES.format("x", "dy", "mask") + _GEOMETRY + "AtenTensorHandle w, "
        "AtenTensorHandle* ret0, AtenTensorHandle* ret1, AtenTensorHandle* ret2",
    ),
}  # fmt: skip


def _product(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None, route: int) -> torch.Tensor:
    return a.new_empty((a.shape[0], b.shape[1]))


def _packed_rows(x: torch.Tensor) -> torch.Tensor:
    return x.new_empty((-(-x.shape[0] // 16) * 16, -(-x.shape[1] // 2)), dtype=torch.int32)


def _packed_linear(packed: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None, m: int) -> torch.Tensor:
    return w.new_empty((m, w.shape[0]))


def _batch_product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a.new_empty((a.shape[0], a.shape[1], b.shape[2]))


def _quantized_linear(x: torch.Tensor, w: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return x.new_empty((x.shape[0], w.shape[0]))


def _attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, texts: torch.Tensor | None,
    scale: float, is_causal: bool, *steps: int,
) -> torch.Tensor:  # fmt: skip
    return q.new_empty_strided(q.shape, (*steps, 1))


def _convolution(
    x: torch.Tensor, w: torch.Tensor, scale: torch.Tensor | None, shift: torch.Tensor | None, stride_y: int,
    stride_x: int, padding_y: int, padding_x: int, dilation_y: int, dilation_x: int, relu: bool,
) -> torch.Tensor:  # fmt: skip
    rows = (x.shape[2] + 2 * padding_y - dilation_y * (w.shape[2] - 1) - 1) // stride_y + 1
    columns = (x.shape[3] + 2 * padding_x - dilation_x * (w.shape[3] - 1) - 1) // stride_x + 1
    return x.new_empty((x.shape[0], rows, columns, w.shape[0])).permute(0, 3, 1, 2)


def _extents(x: torch.Tensor, w: torch.Tensor, pads: tuple[int, int], steps: tuple[int, int]) -> list[int]:
    """Return the output's sizes along the axes after channels, for a padded ``x``."""
    axes = x.dim() - 2
    return [
        size + 2 * pad - step * (taps - 1)
        for size, taps, pad, step in zip(x.shape[2:], w.shape[2:], pads[-axes:], steps[-axes:], strict=True)
    ]


def _small_convolution(
    x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None, pad_y: int, pad_x: int, step_y: int, step_x: int,
    is_rectified: bool,
) -> torch.Tensor:  # fmt: skip
    return x.new_empty((x.shape[0], w.shape[0], *_extents(x, w, (pad_y, pad_x), (step_y, step_x))))


def _small_convolution_weight(
    x: torch.Tensor, dy: torch.Tensor, mask: torch.Tensor | None, pad_y: int, pad_x: int, step_y: int, step_x: int,
    taps_y: int, taps_x: int,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    taps = (taps_y, taps_x) if x.dim() == 4 else (taps_x,)
    return x.new_empty((dy.shape[1], x.shape[1], *taps)), x.new_empty((dy.shape[1],))


def _small_convolution_backward(
    x: torch.Tensor, dy: torch.Tensor, mask: torch.Tensor | None, pad_y: int, pad_x: int, step_y: int, step_x: int,
    w: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    return x.new_empty(x.shape), x.new_empty(w.shape), x.new_empty((w.shape[0],))


_SHAPES: Final[dict[str, Any]] = {
    "rdukit_product": _product,
    "rdukit_packed_rows": _packed_rows,
    "rdukit_packed_linear": _packed_linear,
    "rdukit_batch_product": _batch_product,
    "rdukit_int8_linear": _quantized_linear,
    "rdukit_int4_linear": _quantized_linear,
    "rdukit_attention": _attention,
    "rdukit_convolution": _convolution,
    "rdukit_small_convolution": _small_convolution,
    "rdukit_small_convolution_weight": _small_convolution_weight,
    "rdukit_small_convolution_backward": _small_convolution_backward,
}


@cache
def _library() -> torch.library.Library:
    return define_operators({name: schema for name, (schema, _) in _SIGNATURES.items()}, _SHAPES)


def operator_named(name: str) -> Any:
    """Return the torch operator ``rdukit::<name>``, registered for tracing; it computes nothing itself."""
    _library()
    return getattr(torch.ops.rdukit, name).default


def interface_functions() -> dict[Any, list[str]]:
    """Return each operator with the declaration of the C function that computes it, for inductor."""
    own = {name: (operator_named(name), parameters) for name, (_, parameters) in _SIGNATURES.items()}
    own |= {name: (own_operator(name), parameters) for name, parameters in LSTM_PARAMETERS.items()}
    return {made: [f"AOTITorchError aoti_torch_cpu_{name}({parameters})"] for name, (made, parameters) in own.items()}


def product(a: Any, b: Any, bias: Any, route: Route) -> tuple[Any, tuple[Any, ...]]:
    """Return the operator and arguments of a product [m, k] x [k, n] + [n] by ``route``."""
    return operator_named("rdukit_product"), (a, b, bias, int(route))
