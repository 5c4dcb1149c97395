"""One layer of an LSTM over all steps, as it stands in a portable graph: ``rdukit.lstm_layer`` and its gradient.

Taken apart into torch's operators, a layer is a dozen of them a step: a graph that grows with the sequence, a saved
tensor for each, and weight gradients that are added up step by step. Here the recurrence alone is an operator; the
products over all steps at once, of the input and of the weights' gradients, stay torch's. Everything is f32; gates are
in torch's order: input, forget, cell, output. Source: ours, Hochreiter and Schmidhuber (1997) with forget gates.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any, Final

import torch

from rdukit_compiler.backend.operators import define_operators

#: How the names of these operators begin in graphs; the runtime knows them by name.
LSTM_LAYER: Final = "rdukit.lstm_layer"

#: Signature of each operator, and of the C function of ``native_source/lstm.h`` that inductor's code calls for it.
SIGNATURES: Final = {
    # gates [T, B, 4H]: the input's part and the biases; w [4H, H]; h0, c0 [B, H] → y [T, B, H], the last c [B, H], and
    # what the gradient needs [T, B, 5H], gates and c, or nothing [0].
    "lstm_layer": (
        "(Tensor gates, Tensor w, Tensor h0, Tensor c0, bool is_reversed, bool is_kept) -> (Tensor, Tensor, Tensor)",
        "AtenTensorHandle gates, AtenTensorHandle w, AtenTensorHandle h0, AtenTensorHandle c0, int32_t is_reversed, "
        "int32_t is_kept, AtenTensorHandle* ret0, AtenTensorHandle* ret1, AtenTensorHandle* ret2",
    ),
    # Gradients of y and of the last c → those of gates and of c0.
    "lstm_layer_backward": (
        "(Tensor dy, Tensor dc, Tensor w, Tensor c0, Tensor kept, bool is_reversed) -> (Tensor, Tensor)",
        "AtenTensorHandle dy, AtenTensorHandle dc, AtenTensorHandle w, AtenTensorHandle c0, AtenTensorHandle kept, "
        "int32_t is_reversed, AtenTensorHandle* ret0, AtenTensorHandle* ret1",
    ),
}  # fmt: skip


@cache
def _library() -> torch.library.Library:
    library = define_operators({name: schema for name, (schema, _) in SIGNATURES.items()}, _SHAPES)
    torch.library.register_autograd("rdukit::lstm_layer", _gradients, setup_context=_save, lib=library)
    return library


def operators() -> dict[str, Any]:
    """The torch operators by name, registered; they compute nothing themselves."""
    _library()
    return {name: getattr(torch.ops.rdukit, name).default for name in SIGNATURES}


def lstm_layer(
    gates: torch.Tensor, w: torch.Tensor, h0: torch.Tensor, c0: torch.Tensor, is_reversed: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """For tracing: gates [T, B, 4H], w [4H, H], h0 and c0 [B, H] → y [T, B, H], and h and c [B, H] after the last step.

    Args:
        is_reversed: from the last step to the first.
    """
    is_kept = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (gates, w, h0, c0))
    y, c, _ = operators()["lstm_layer"](gates, w, h0, c0, is_reversed, is_kept)
    return y, y[0 if is_reversed else -1], c


def _layer(
    gates: torch.Tensor, w: torch.Tensor, h0: torch.Tensor, c0: torch.Tensor, is_reversed: bool, is_kept: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    steps, batch, _ = gates.shape
    width = w.shape[1]
    kept = (steps, batch, 5 * width) if is_kept else (0,)
    return gates.new_empty((steps, batch, width)), gates.new_empty((batch, width)), gates.new_empty(kept)


def _layer_backward(
    dy: torch.Tensor, dc: torch.Tensor, w: torch.Tensor, c0: torch.Tensor, kept: torch.Tensor, is_reversed: bool
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    steps, batch, width = dy.shape
    return dy.new_empty((steps, batch, 4 * width)), dy.new_empty((batch, width))


_SHAPES: Final[dict[str, Any]] = {"lstm_layer": _layer, "lstm_layer_backward": _layer_backward}


def _save(ctx: Any, inputs: Sequence[Any], output: Sequence[torch.Tensor]) -> None:
    _, w, h0, c0, ctx.is_reversed, _ = inputs
    y, _, kept = output
    ctx.save_for_backward(w, h0, c0, y, kept)


def _gradients(ctx: Any, dy: torch.Tensor, dc: torch.Tensor, _: object) -> tuple[torch.Tensor | None, ...]:
    w, h0, c0, y, kept = ctx.saved_tensors
    gates, dc0 = operators()["lstm_layer_backward"](dy, dc, w, c0, kept, ctx.is_reversed)
    first = h0.unsqueeze(0)
    before = torch.cat([y[1:], first] if ctx.is_reversed else [first, y[:-1]])
    dw = gates.flatten(0, 1).t() @ before.flatten(0, 1)
    return gates, dw, gates[-1 if ctx.is_reversed else 0] @ w, dc0, None, None
