"""Our own operators in portable graphs: layers with quantized weights, products of groups of rows, LSTM layers.

Each is traced by its schema and the shapes of its results, and computes nothing here; the runtime has its code.

- ``int8_linear``: a weight [N, K] is int8 with a scale for each of its rows; activations keep their dtype and sums are
  in f32.
- ``int4_linear``: a weight [N, K] is uint8 [N, K / 32, 16], two elements a byte, with a scale in bf16 for each group of
  elements of its rows [N, K / 32].
- ``grouped_product``: groups of rows with a matrix each, as mixtures of experts have them. The number
  of rows in a group depends on data; their total does not. torch's own operator can be recorded only in bf16, and lacks
  a gradient for some layouts. Rows after the last group give zeros, where torch leaves them undefined.
- ``lstm_layer``: one layer over all steps. torch's operators would be a dozen for each step: the graph would grow with
  the sequence, save a tensor for each operator, and add up weight gradients step by step. Here only the recurrence is
  an operator; the products over all steps stay torch's. Everything is f32; gates are in torch's order: input, forget,
  cell, output.

Source: ours; torch's ``grouped_mm``; Hochreiter and Schmidhuber (1997) with forget gates.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any, Final

import torch

from rdukit_compiler.operators.naming import define_operators

#: Names in graphs; the runtime knows the operators by them.
INT8_LINEAR: Final = "rdukit.int8_linear.default"
INT4_LINEAR: Final = "rdukit.int4_linear.default"
INT8_EMBEDDING: Final = "rdukit.int8_embedding"
#: Prefix of the names of LSTM operators in graphs.
LSTM_LAYER: Final = "rdukit.lstm_layer"

#: Name → schema.
_SCHEMAS: Final = {
    "int8_linear": "(Tensor x, Tensor w, Tensor scale, Tensor? bias) -> Tensor",
    "int4_linear": "(Tensor x, Tensor w, Tensor scale, Tensor? bias) -> Tensor",
    # Rows x [S, K] of which the first ends[0] belong to group 0, those up to ends[1] to group 1, and so on.
    # w [G, K, N] → [S, N]: each row times its group's matrix.
    "grouped_product": "(Tensor x, Tensor w, Tensor ends) -> Tensor",
    # dy [S, N] → [G, K, N]: each group's x transposed times its dy.
    "grouped_outer_product": "(Tensor x, Tensor dy, Tensor ends) -> Tensor",
    # gates [T, B, 4H]: the input's part and the biases; w [4H, H]; h0, c0 [B, H] → y [T, B, H], the last c [B, H], and
    # the gradient's operand [T, B, 5H] (gates and c), or an empty tensor [0].
    "lstm_layer": (
        "(Tensor gates, Tensor w, Tensor h0, Tensor c0, bool is_reversed, bool is_kept) -> (Tensor, Tensor, Tensor)"
    ),
    # Gradients of y and of the last c → those of gates and of c0.
    "lstm_layer_backward": (
        "(Tensor dy, Tensor dc, Tensor w, Tensor c0, Tensor kept, bool is_reversed) -> (Tensor, Tensor)"
    ),
}
#: LSTM operator → parameters of the C function of ``native_source/lstm.h`` that inductor's code calls for it.
LSTM_PARAMETERS: Final = {
    "lstm_layer": "AtenTensorHandle gates, AtenTensorHandle w, AtenTensorHandle h0, AtenTensorHandle c0, "
    "int32_t is_reversed, int32_t is_kept, AtenTensorHandle* ret0, AtenTensorHandle* ret1, AtenTensorHandle* ret2",
    "lstm_layer_backward": "AtenTensorHandle dy, AtenTensorHandle dc, AtenTensorHandle w, AtenTensorHandle c0, "
    "AtenTensorHandle kept, int32_t is_reversed, AtenTensorHandle* ret0, AtenTensorHandle* ret1",
}


def own_operator(name: str) -> Any:
    """Return the torch operator ``rdukit::<name>``; registers all of them at the first call."""
    _library()
    return getattr(torch.ops.rdukit, name).default


@cache
def _library() -> torch.library.Library:
    library = define_operators(_SCHEMAS, _SHAPES)
    autograd = torch.library.register_autograd
    autograd("rdukit::grouped_product", _grouped_gradients, setup_context=_save_grouped, lib=library)
    autograd("rdukit::lstm_layer", _lstm_gradients, setup_context=_save_lstm, lib=library)
    return library


def int8_linear(
    x: torch.Tensor, w: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:  # fmt: skip
    """Trace a linear layer: x [..., K], w int8 [N, K], scale f32 [N], bias [N] → [..., N]."""
    made: torch.Tensor = own_operator("int8_linear")(x, w, scale, bias)
    return made


def int4_linear(
    x: torch.Tensor, w: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:  # fmt: skip
    """Trace a linear layer: x [..., K], w uint8 [N, K / 32, 16], scale bf16 [N, K / 32], bias [N] → [..., N]."""
    made: torch.Tensor = own_operator("int4_linear")(x, w, scale, bias)
    return made


def int8_embedding(w: torch.Tensor, indices: torch.Tensor, scale: torch.Tensor, like: torch.dtype) -> torch.Tensor:
    """Look up rows of an int8 weight: w [N, D], indices [...] → [..., D] in dtype ``like``."""
    rows: torch.Tensor = torch.ops.aten.index.Tensor(w, [indices])
    scales: torch.Tensor = torch.ops.aten.index.Tensor(scale, [indices])
    return (rows.to(torch.float32) * scales.unsqueeze(-1)).to(like)


def grouped_mm(
    x: torch.Tensor, w: torch.Tensor, offs: torch.Tensor | None = None, bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:  # fmt: skip
    """Compute ``aten._grouped_mm`` in operators that support every dtype: rows by groups, or a batch; otherwise call
    torch's.
    """
    if bias is not None or x.dim() + w.dim() != (5 if offs is not None else 6):
        return torch.ops.aten._grouped_mm.default(x, w, offs, bias, out_dtype)  # type: ignore[no-any-return]
    dtype = torch.promote_types(x.dtype, w.dtype)
    x, w = x.to(dtype), w.to(dtype)
    made: torch.Tensor
    if offs is None:
        made = torch.bmm(x, w)
    elif x.dim() == 2:
        made = own_operator("grouped_product")(x, w, offs)
    else:  # columns of w by groups
        made = own_operator("grouped_product")(w.transpose(0, 1), x.transpose(1, 2), offs).transpose(0, 1)
    return made if out_dtype is None else made.to(out_dtype)


def lstm_layer(
    gates: torch.Tensor, w: torch.Tensor, h0: torch.Tensor, c0: torch.Tensor, is_reversed: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Trace a layer: gates [T, B, 4H], w [4H, H], h0 and c0 [B, H] → y [T, B, H], and the last h and c [B, H].

    Args:
        is_reversed: from the last step to the first.
    """
    is_kept = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (gates, w, h0, c0))
    y, c, _ = own_operator("lstm_layer")(gates, w, h0, c0, is_reversed, is_kept)
    return y, y[0 if is_reversed else -1], c


def _linear_shape(x: torch.Tensor, w: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return x.new_empty((*x.shape[:-1], w.shape[0]))


def _grouped_shape(x: torch.Tensor, w: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    return x.new_empty((x.shape[0], w.shape[2]))


def _outer_shape(x: torch.Tensor, dy: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    return x.new_empty((ends.shape[0], x.shape[1], dy.shape[1]))


def _lstm_shapes(
    gates: torch.Tensor, w: torch.Tensor, h0: torch.Tensor, c0: torch.Tensor, is_reversed: bool, is_kept: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    steps, batch, _ = gates.shape
    width = w.shape[1]
    kept = (steps, batch, 5 * width) if is_kept else (0,)
    return gates.new_empty((steps, batch, width)), gates.new_empty((batch, width)), gates.new_empty(kept)


def _lstm_backward_shapes(
    dy: torch.Tensor, dc: torch.Tensor, w: torch.Tensor, c0: torch.Tensor, kept: torch.Tensor, is_reversed: bool
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    steps, batch, width = dy.shape
    return dy.new_empty((steps, batch, 4 * width)), dy.new_empty((batch, width))


_SHAPES: Final[dict[str, Any]] = {
    "int8_linear": _linear_shape, "int4_linear": _linear_shape,
    "grouped_product": _grouped_shape, "grouped_outer_product": _outer_shape,
    "lstm_layer": _lstm_shapes, "lstm_layer_backward": _lstm_backward_shapes,
}  # fmt: skip


def _save_grouped(ctx: Any, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _grouped_gradients(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    x, w, ends = ctx.saved_tensors
    wanted_x, wanted_w, _ = ctx.needs_input_grad
    dx = own_operator("grouped_product")(dy, w.transpose(1, 2), ends) if wanted_x else None
    return dx, own_operator("grouped_outer_product")(x, dy, ends) if wanted_w else None, None


def _save_lstm(ctx: Any, inputs: Sequence[Any], output: Sequence[torch.Tensor]) -> None:
    _, w, h0, c0, ctx.is_reversed, _ = inputs
    y, _, kept = output
    ctx.save_for_backward(w, h0, c0, y, kept)


def _lstm_gradients(ctx: Any, dy: torch.Tensor, dc: torch.Tensor, _: object) -> tuple[torch.Tensor | None, ...]:
    w, h0, c0, y, kept = ctx.saved_tensors
    gates, dc0 = own_operator("lstm_layer_backward")(dy, dc, w, c0, kept, ctx.is_reversed)
    first = h0.unsqueeze(0)
    before = torch.cat([y[1:], first] if ctx.is_reversed else [first, y[:-1]])
    dw = gates.flatten(0, 1).t() @ before.flatten(0, 1)
    return gates, dw, gates[-1 if ctx.is_reversed else 0] @ w, dc0, None, None
