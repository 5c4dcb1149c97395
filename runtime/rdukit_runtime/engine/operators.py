"""Operators of rdukit in generated code: grouped products, guards, group norm, LSTM layers.

Grouped products are one product of torch's for each group that has rows.

Guards check a condition that forward was compiled for. A model that tests whether its numbers are finite is compiled
for finite ones; by opt-in, other tests of data are compiled for the example inputs' outcome. They run when all other
sections of forward have, before any gradient is computed and any weight is updated.

Torch's group norm needs a dense operand in one of the two usual orders, to which its callers convert. A recorded call
omits unnecessary copies; a copy is needed if a view with axes of one element has other strides than its record.

An LSTM's gates are in torch's order: input, forget, cell, output. All its tensors are f32.

Source: ours.
"""

from collections.abc import Iterator
from typing import Any, Final

import torch

from rdukit.errors import SectionFailed


def grouped_product(x: torch.Tensor, w: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """x [S, K], w [G, K, N] → [S, N]; rows that belong to no group give zeros."""
    made = x.new_zeros((x.shape[0], w.shape[2]))
    for group, rows in _groups(ends, x.shape[0]):
        torch.mm(x[rows], w[group], out=made[rows])
    return made


def grouped_outer_product(x: torch.Tensor, dy: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """x [S, K], dy [S, N] → [G, K, N]: x transposed times dy of each group; a group without rows gives zeros."""
    made = x.new_zeros((ends.shape[0], x.shape[1], dy.shape[1]))
    for group, rows in _groups(ends, x.shape[0]):
        torch.mm(x[rows].t(), dy[rows], out=made[group])
    return made


def _groups(ends: torch.Tensor, most: int) -> Iterator[tuple[int, slice]]:
    begin = 0
    for group, end in enumerate(ends.tolist()):
        end = min(end, most)
        if end > begin:
            yield group, slice(begin, end)
            begin = end


GROUPED_OPERATORS: Final[dict[str, Any]] = {
    "rdukit.grouped_product.default": grouped_product, "rdukit.grouped_outer_product.default": grouped_outer_product,
}  # fmt: skip


def check_condition(holds: torch.Tensor, asked: str, token: torch.Tensor) -> torch.Tensor:
    """Return ``token``, of which nothing reads the value.

    Args:
        holds: [] bool. asked: file, line and text of the condition.
    Raises:
        SectionFailed: ``holds`` is false.
    """
    if not bool(holds):
        raise SectionFailed(
            f"forward reads data at {asked}, and this run gave another result than the compile assumed. It assumed "
            "finite numbers, passing checks, unchanged buffers and, with RDUKIT_SUPPOSE_EXAMPLE, the example inputs. "
            "The run trained nothing. Compile again for other buffers, look for NaN and infinity (inputs, learning "
            "rate, --precision f32), or write forward without a condition: torch.where, torch.nan_to_num, clamp, masks"
        )
    return token.clone()


GUARD_OPERATORS: Final[dict[str, Any]] = {"aten._functional_assert_async.msg": check_condition}


aten = torch.ops.aten


def group_norm(x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """Return ``aten.native_group_norm``; ``x`` is ``[N, C, …]``."""
    return aten.native_group_norm.default(_settled(x), *args, **kwargs)


def group_norm_backward(dy: torch.Tensor, x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """Return ``aten.native_group_norm_backward``; ``dy`` and ``x`` are ``[N, C, …]``."""
    x = _settled(x)
    if dy.stride() != x.stride():
        dy = torch.empty_like(x).copy_(dy)
    return aten.native_group_norm_backward.default(dy, x, *args, **kwargs)


def _settled(x: torch.Tensor) -> torch.Tensor:
    """Return ``x`` in the order of its axes, or with channels last if it already lies so."""
    if x.is_contiguous():
        return x
    if x.dim() == 4 and x.stride() == torch.empty(x.shape, device="meta", memory_format=torch.channels_last).stride():
        return x
    return x.contiguous()


NORM_OPERATORS: Final[dict[str, Any]] = {
    "aten.native_group_norm.default": group_norm, "aten.native_group_norm_backward.default": group_norm_backward,
}  # fmt: skip


def lstm_layer(
    gates: torch.Tensor, w: torch.Tensor, h0: torch.Tensor, c0: torch.Tensor, is_reversed: bool, is_kept: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """gates [T, B, 4H], w [4H, H], h0 and c0 [B, H] → y [T, B, H], the last c [B, H], and values saved for the
    gradient.

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
    """Return gradients of gates [T, B, 4H] and c0 [B, H], given those of y [T, B, H] and of the last c [B, H]."""
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
