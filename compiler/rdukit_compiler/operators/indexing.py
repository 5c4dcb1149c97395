"""Lookups and writes at positions, with gradients that are static and accurate.

torch's bf16 gradient of a lookup adds in bf16: the gradient of a row that many indices name stops growing after 256
equal terms, and a frequent token's is off by half or more. The device accumulates in a wider dtype and rounds once (SDK
reference 16). torch differentiates a masked write through the list of positions, whose length depends on data; here a
mask of the positions replaces it.
"""

from typing import Any, Final

import torch

aten = torch.ops.aten

#: Mode of ``embedding_bag`` that takes the largest of a bag's rows.
_MAX: Final = 2


def embedding(
    weight: torch.Tensor, indices: torch.Tensor, padding_idx: int = -1, scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> torch.Tensor:  # fmt: skip
    """Compute ``aten.embedding``: weight [N, D], indices [...] → [..., D]."""
    if not _adds_narrowly(weight):  # the device's gradients are dense: a sparse gradient has the same numbers
        return aten.embedding.default(weight, indices, padding_idx, scale_grad_by_freq)  # type: ignore[no-any-return]
    made: torch.Tensor = _Embedding.apply(weight, indices, padding_idx, scale_grad_by_freq)  # type: ignore[no-untyped-call]
    return made


def embedding_bag(
    weight: torch.Tensor, indices: torch.Tensor, offsets: torch.Tensor, scale_grad_by_freq: bool = False, mode: int = 0,
    sparse: bool = False, per_sample_weights: torch.Tensor | None = None, include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Any:  # fmt: skip
    """Compute ``aten.embedding_bag`` with a dense gradient; of bf16 rows in f32, rounded once.

    Args:
        weight: [N, D].
        indices: [I].
        offsets: [B], or [B + 1] with ``include_last_offset``.

    torch predicts other shapes for bf16 than its kernel returns. bf16 rows are widened after the lookup. The table is
    widened where results depend on it: positions of the largest rows, torch's frequencies, shapes of a turned table.
    """
    rest = include_last_offset, padding_idx
    if weight.dtype != torch.bfloat16 or (mode == _MAX and not _adds_narrowly(weight)):
        return aten.embedding_bag(weight, indices, offsets, scale_grad_by_freq, mode, False, per_sample_weights, *rest)
    weights = None if per_sample_weights is None else per_sample_weights.float()
    if mode == _MAX or scale_grad_by_freq or weight.stride(1) != 1:
        made = aten.embedding_bag(weight.float(), indices, offsets, scale_grad_by_freq, mode, False, weights, *rest)
    else:
        rows, count = embedding(weight, indices).float(), indices.shape[0]
        places = torch.arange(count, dtype=indices.dtype, device=indices.device)
        if padding_idx is not None:  # row I, zero, is the one that is left out
            rows = torch.cat((rows, rows.new_zeros(1, weight.shape[1])))
            places = torch.where(indices == padding_idx % weight.shape[0], count, places)
            rest = include_last_offset, count
        made = aten.embedding_bag(rows, places, offsets, False, mode, False, weights, *rest)
    return made[0].to(weight.dtype), *made[1:]


def embedding_renorm(weight: torch.Tensor, indices: torch.Tensor, max_norm: float, norm_type: float) -> torch.Tensor:
    """Compute ``aten.embedding_renorm``, which autograd does not follow."""
    made: torch.Tensor = aten.embedding_renorm.default(weight.detach(), indices, max_norm, norm_type)
    return made


def index(source: torch.Tensor, indices: list[torch.Tensor | None]) -> torch.Tensor:
    """Compute ``aten.index``: ``source[i, j, …]``, with None for a whole axis."""
    if not _adds_narrowly(source):
        return aten.index.Tensor(source, indices)  # type: ignore[no-any-return]
    made: torch.Tensor = _Index.apply(source, indices)  # type: ignore[no-untyped-call]
    return made


def one_hot(indices: torch.Tensor, num_classes: int = -1) -> torch.Tensor:
    """Compute ``aten.one_hot``: indices [...] → [..., num_classes] int64.

    torch's traced form compares, and returns rows of zeros for indices out of range; a lookup refuses these.
    """
    if num_classes < 1:
        return aten.one_hot.default(indices, num_classes)  # type: ignore[no-any-return]
    classes = torch.arange(num_classes, dtype=torch.int64, device=indices.device)
    legal = aten.embedding.default(classes.unsqueeze(1), indices)
    made: torch.Tensor = (legal == classes).to(torch.int64)
    return made


def _adds_narrowly(tensor: torch.Tensor) -> bool:
    return tensor.requires_grad and torch.is_grad_enabled() and tensor.dtype == torch.bfloat16


class _Embedding(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: torch.Tensor, indices: torch.Tensor, padding_idx: int, by_frequency: bool) -> Any:
        ctx.save_for_backward(indices)
        ctx.rest = weight.shape[0], padding_idx, by_frequency
        return aten.embedding.default(weight, indices, padding_idx, by_frequency)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        (indices,) = ctx.saved_tensors
        total = aten.embedding_dense_backward.default(gradients[0].float(), indices, *ctx.rest)
        return total.to(gradients[0].dtype), None, None, None


class _Index(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, source: torch.Tensor, indices: list[torch.Tensor | None]) -> Any:
        ctx.shape, ctx.indices = source.shape, indices
        return aten.index.Tensor(source, indices)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        wide = gradients[0].float()
        total = aten.index_put.default(wide.new_zeros(ctx.shape), ctx.indices, wide, True)
        return total.to(gradients[0].dtype), None


def index_put(
    target: torch.Tensor, indices: list[torch.Tensor | None], values: torch.Tensor, accumulate: bool = False
) -> torch.Tensor:  # fmt: skip
    """Compute ``aten.index_put``, with one boolean mask among ``indices``, over one or several axes of ``target``."""
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
    """Compute ``aten.index_fill.int_Tensor``: value [] at each position of ``index`` along ``axis``."""
    if not (torch.is_grad_enabled() and value.requires_grad):
        return aten.index_fill.int_Tensor(target, axis, index, value)  # type: ignore[no-any-return]
    size = target.shape[axis] if target.dim() else 1
    hit = aten.index_fill.int_Scalar(torch.zeros(size, dtype=torch.bool), 0, index, True)
    shape = [1] * target.dim()
    if shape:
        shape[axis] = size
    return torch.where(hit.reshape(shape), value.to(target.dtype), target)
