"""Writes at positions that a tensor gives, with gradients of static shape.

torch differentiates them by asking which positions there are: how many depends on data. Here a mask of the positions
does the same. What is written is torch's own operator's.
"""

from typing import Any

import torch

aten = torch.ops.aten


def index_put(
    target: torch.Tensor, indices: list[torch.Tensor | None], values: torch.Tensor, accumulate: bool = False
) -> torch.Tensor:  # fmt: skip
    """``aten.index_put``, with one boolean mask among ``indices``, over one or several axes of ``target``."""
    masks = [index for index in indices if index is not None and index.dtype in {torch.bool, torch.uint8}]
    followed = torch.is_grad_enabled() and (target.requires_grad or values.requires_grad)
    if not masks or not followed or any(index is not None and index is not masks[0] for index in indices):
        return aten.index_put.default(target, indices, values, accumulate)  # type: ignore[no-any-return]
    made: torch.Tensor = _MaskedPut.apply(target, indices.index(masks[0]), masks[0], values, accumulate)  # type: ignore[no-untyped-call]
    return made


class _MaskedPut(torch.autograd.Function):
    """target [P…, M…, Q…], mask [M…] that begins at axis ``first``, values broadcast to [P…, K, Q…]."""

    @staticmethod
    def forward(
        ctx: Any, target: torch.Tensor, first: int, mask: torch.Tensor, values: torch.Tensor, accumulate: bool
    ) -> torch.Tensor:
        ctx.save_for_backward(mask)
        ctx.first, ctx.shape, ctx.dtype, ctx.accumulate = first, values.shape, values.dtype, accumulate
        indices = [*[None] * first, mask]
        return aten.index_put.default(target, indices, values, accumulate)  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        (gradient,) = gradients
        mask = ctx.saved_tensors[0].bool()
        first, after = ctx.first, gradient.dim() - ctx.first - mask.dim()
        seen = mask.reshape(*[1] * first, *mask.shape, *[1] * after)
        of_target = gradient if ctx.accumulate else torch.where(seen, 0, gradient)
        if not ctx.needs_input_grad[3]:
            return of_target, None, None, None, None
        axis = len(ctx.shape) - 1 - after  # of K among the axes of values
        if axis < 0 or ctx.shape[axis] == 1:
            written = torch.where(seen, gradient, 0).flatten(first, first + mask.dim() - 1).sum(first, keepdim=True)
        else:
            moved = gradient.flatten(first, first + mask.dim() - 1).movedim(first, 0)
            where = mask.flatten().reshape(-1, *[1] * (moved.dim() - 1)).expand_as(moved)
            sizes = [ctx.shape[axis], *moved.shape[1:]]
            written = aten.masked_scatter_backward.default(moved, where, sizes).movedim(0, first)
        return of_target, None, None, written.sum_to_size(ctx.shape).to(ctx.dtype), None


def index_fill(target: torch.Tensor, axis: int, index: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """``aten.index_fill.int_Tensor``: value [] at each place of ``index`` along ``axis``."""
    if not (torch.is_grad_enabled() and value.requires_grad):
        return aten.index_fill.int_Tensor(target, axis, index, value)  # type: ignore[no-any-return]
    size = target.shape[axis] if target.dim() else 1
    hit = aten.index_fill.int_Scalar(torch.zeros(size, dtype=torch.bool), 0, index, True)
    shape = [1] * target.dim()
    if shape:
        shape[axis] = size
    return torch.where(hit.reshape(shape), value.to(target.dtype), target)
