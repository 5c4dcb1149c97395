"""Lookups whose gradient adds up in f32: a row that many indices name would stop growing in bf16 at 256 equal parts.

torch's own bf16 form adds in bf16, so that a frequent token's gradient is off by half and more; the device's gradients
accumulate wider and are rounded once (SDK reference 16).
"""

from typing import Any

import torch

aten = torch.ops.aten


def embedding(
    weight: torch.Tensor, indices: torch.Tensor, padding_idx: int = -1, scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> torch.Tensor:  # fmt: skip
    """``aten.embedding``: weight [N, D], indices [...] → [..., D]."""
    if not _adds_narrowly(weight):  # the device's gradients are dense: a sparse one is the same numbers
        return aten.embedding.default(weight, indices, padding_idx, scale_grad_by_freq)  # type: ignore[no-any-return]
    made: torch.Tensor = _Embedding.apply(weight, indices, padding_idx, scale_grad_by_freq)  # type: ignore[no-untyped-call]
    return made


def embedding_bag(
    weight: torch.Tensor, indices: torch.Tensor, offsets: torch.Tensor, scale_grad_by_freq: bool = False, mode: int = 0,
    sparse: bool = False, *rest: Any,
) -> Any:  # fmt: skip
    """``aten.embedding_bag``, with a dense gradient."""
    return torch.ops.aten.embedding_bag(weight, indices, offsets, scale_grad_by_freq, mode, False, *rest)


def embedding_renorm(weight: torch.Tensor, indices: torch.Tensor, max_norm: float, norm_type: float) -> torch.Tensor:
    """``aten.embedding_renorm``, which autograd does not follow."""
    made: torch.Tensor = aten.embedding_renorm.default(weight.detach(), indices, max_norm, norm_type)
    return made


def index(source: torch.Tensor, indices: list[torch.Tensor | None]) -> torch.Tensor:
    """``aten.index``: ``source[i, j, …]``, with None for a whole axis."""
    if not _adds_narrowly(source):
        return aten.index.Tensor(source, indices)  # type: ignore[no-any-return]
    made: torch.Tensor = _Index.apply(source, indices)  # type: ignore[no-untyped-call]
    return made


def one_hot(indices: torch.Tensor, num_classes: int = -1) -> torch.Tensor:
    """``aten.one_hot``: indices [...] → [..., num_classes] int64.

    torch's own form of a trace compares, and makes rows of zeros of what is out of range; a lookup refuses that.
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
