"""LSTMs as layers of our own operator (``backend/lstm_layer.py``), between products of torch's.

In bf16 the recurrence is in f32 and what leaves a layer is rounded once, as other sums on the device are.
"""

from collections.abc import Sequence
from typing import Final

import torch

from rdukit_compiler.backend.lstm_layer import lstm_layer
from rdukit_compiler.dropout import dropout

aten = torch.ops.aten

_DTYPES: Final = frozenset({torch.float32, torch.bfloat16})


def lstm(
    x: torch.Tensor, states: Sequence[torch.Tensor], params: Sequence[torch.Tensor], has_biases: bool, layers: int,
    rate: "float | torch.Tensor", train: bool, is_bidirectional: bool, is_batch_first: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """What ``aten.lstm.input`` computes, in our operators; projected states and other dtypes stay torch's.

    Args:
        x: [T, B, C], or [B, T, C]. states: h and c, each [layers * directions, B, H].
        params: by layer and direction, weights [4H, C] and [4H, H], and with biases two of [4H].
        rate: of dropout between layers.
    Returns:
        y [T, B, directions * H], or [B, T, …]; h and c after the last steps, shaped as ``states``.
    """
    directions, each = 1 + is_bidirectional, 4 if has_biases else 2
    if len(params) != layers * directions * each or {t.dtype for t in (x, *states, *params)} - _DTYPES:
        return aten.lstm.input(  # type: ignore[no-any-return]
            x, states, params, has_biases, layers, rate, train, is_bidirectional, is_batch_first
        )
    y = x.transpose(0, 1) if is_batch_first else x
    last: list[tuple[torch.Tensor, torch.Tensor]] = []
    for layer in range(layers):
        made = []
        for is_reversed in (False, True)[:directions]:
            place = len(last)
            own = params[place * each : (place + 1) * each]
            way, h, c = _direction(y, states[0][place], states[1][place], own, is_reversed)
            made.append(way)
            last.append((h, c))
        y = torch.cat(made, -1) if is_bidirectional else made[0]
        if layer + 1 < layers:
            y = dropout(y, rate, train)
    h_last, c_last = (torch.stack([pair[i] for pair in last]).to(states[i].dtype) for i in (0, 1))
    return y.transpose(0, 1) if is_batch_first else y, h_last, c_last


def _direction(
    x: torch.Tensor, h: torch.Tensor, c: torch.Tensor, params: Sequence[torch.Tensor], is_reversed: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """y in the dtype of x, and the last h and c in f32."""
    w_input, w, *biases = params
    dtype = torch.promote_types(x.dtype, w_input.dtype)
    rows, turned = x.reshape(-1, x.shape[2]).to(dtype), w_input.t().to(dtype)
    gates = torch.addmm((biases[0] + biases[1]).to(dtype), rows, turned) if biases else rows @ turned
    by_step = gates.float().view(*x.shape[:2], -1)
    y, h_last, c_last = lstm_layer(by_step, w.float(), h.float(), c.float(), is_reversed)
    return y.to(x.dtype), h_last, c_last
