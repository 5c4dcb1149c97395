"""The recurrence of an LSTM layer in generated code, and its gradient: torch's operators step by step, on any device.

Gates are in torch's order: input, forget, cell, output. All tensors are f32. Source: ours.
"""

from typing import Any, Final

import torch


def lstm_layer(
    gates: torch.Tensor, w: torch.Tensor, h0: torch.Tensor, c0: torch.Tensor, is_reversed: bool, is_kept: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """gates [T, B, 4H], w [4H, H], h0 and c0 [B, H] → y [T, B, H], the last c [B, H], and what the gradient needs.

    That is [T, B, 5H], gates and c, or [0] if it ``is_kept`` not.
    """
    steps, batch, _ = gates.shape
    width, turned = w.shape[1], w.t()
    y = gates.new_empty((steps, batch, width))
    kept = gates.new_empty((steps, batch, 5, width) if is_kept else (0,))
    h, c = h0, c0
    for step in reversed(range(steps)) if is_reversed else range(steps):
        enter, forget, cell, leave = torch.addmm(gates[step], h, turned).chunk(4, 1)
        parts = [torch.sigmoid(enter), torch.sigmoid(forget), torch.tanh(cell), torch.sigmoid(leave)]
        c = parts[1] * c + parts[0] * parts[2]
        h = torch.mul(parts[3], torch.tanh(c), out=y[step])
        if is_kept:
            torch.stack([*parts, c], 1, out=kept[step])
    return y, c.clone() if c is c0 else c, kept.flatten(2) if is_kept else kept


def lstm_layer_backward(
    dy: torch.Tensor, dc: torch.Tensor, w: torch.Tensor, c0: torch.Tensor, kept: torch.Tensor, is_reversed: bool
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Gradients of y [T, B, H] and of the last c [B, H] → those of gates [T, B, 4H] and of c0 [B, H]."""
    steps, batch, width = dy.shape
    gates = dy.new_empty((steps, batch, 4, width))
    parts = kept.reshape(steps, batch, 5, width)
    order = list(range(steps))[::-1] if is_reversed else list(range(steps))
    dh = torch.zeros_like(c0)
    for place in reversed(range(steps)):
        step = order[place]
        enter, forget, cell, leave, c = parts[step].unbind(1)
        before = parts[order[place - 1]][:, 4] if place else c0
        squashed, given = torch.tanh(c), dy[step] + dh
        dc = dc + given * leave * (1 - squashed * squashed)
        torch.stack(
            [
                dc * cell * enter * (1 - enter), dc * before * forget * (1 - forget), dc * enter * (1 - cell * cell),
                given * squashed * leave * (1 - leave),
            ],
            1, out=gates[step],
        )  # fmt: skip
        dc = dc * forget
        dh = gates[step].flatten(1) @ w
    return gates.flatten(2), dc


LSTM_OPERATORS: Final[dict[str, Any]] = {
    "rdukit.lstm_layer.default": lstm_layer, "rdukit.lstm_layer_backward.default": lstm_layer_backward,
}  # fmt: skip
