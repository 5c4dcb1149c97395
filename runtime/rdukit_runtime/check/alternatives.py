"""Other results that torch's own kernels give for the same infinite numbers, large numbers and NaN.

Which they give depends on shapes, places in a tensor, dtypes and the processor. A native kernel may give any of them.
"""

from collections.abc import Sequence
from itertools import product
from typing import Any, Final

import torch

from rdukit_runtime.engine.torch_private import TorchDispatchMode

#: Gradients that torch's kernel makes NaN if the function's input is NaN, except beyond the last full vector. That
#: input is their last argument.
_NAN_IN_VECTORS: Final = frozenset({torch.ops.aten.elu_backward.default, torch.ops.aten.hardswish_backward.default})
#: Norms of rows, of which torch's kernel makes some infinite, NaN or zero by place and length: see ``_norm_rows``.
_NORMS_OF_ROWS: Final = frozenset({torch.ops.aten.native_layer_norm.default, torch.ops.aten.native_group_norm.default})
#: Gradients of norms of rows → the place of the means among their arguments; scales follow.
_GRADIENTS_OF_ROWS: Final = {
    torch.ops.aten.native_layer_norm_backward.default: 3, torch.ops.aten.native_group_norm_backward.default: 2,
}  # fmt: skip
#: Norm that multiplies infinite weights by the mean alone, and by the rest of the number: see ``_norm_centered``.
_BATCH_NORM: Final = torch.ops.aten.native_batch_norm.default
#: Function of large numbers that torch's kernel makes infinite, and of infinity, NaN; beyond the last full vector it
#: returns them.
_GELU: Final = torch.ops.aten.gelu.default
#: Operator that skips padding, or multiplies it by weights: see ``_convolve_padded`` and ``_convolve_inside``.
_CONVOLUTION: Final = torch.ops.aten.convolution.default
#: Operator that leaves out values without weight, or multiplies them by zero: see ``_attend``.
_ATTENTION: Final = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default


class Elsewhere(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Returns results of torch's kernels for the same numbers at other places of a tensor, if they differ."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if func in _NAN_IN_VECTORS:
            return torch.where(args[-1].isnan(), args[-1], made)
        if func is _CONVOLUTION and not args[1].isfinite().all():
            return _convolve_padded(*args)
        if func is _BATCH_NORM and not all(each is None or each.isfinite().all() for each in args[1:3]):
            return _norm_centered(made, *args)
        if func is _GELU and not kwargs:
            return torch.where(args[0] > torch.finfo(made.dtype).max / 2, args[0], made)
        if func is torch.ops.aten.hardtanh_backward.default:  # only whole vectors are 0
            return made.masked_fill(args[1].isnan(), 0.0)
        if func in _NORMS_OF_ROWS:
            return _norm_rows(func, made, *args)
        if func in _GRADIENTS_OF_ROWS:
            return _differentiate_rows(func, made, args)
        return made


class Inside(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Convolves what lies inside of a picture, one weight after the other, and attends to what has weight, in f32.

    Some of torch's kernels multiply padding by weights, and infinite values by zero. Its convolutions of bf16 spread
    NaN and infinity to neighbouring results, and its attention returns zeros for some rows whose scores are NaN.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if func is _ATTENTION:
            return _attend(made, *args, **(kwargs or {}))
        if func is not _CONVOLUTION:
            return made
        x, w, bias, stride, padding, dilation, is_transposed, _, groups = args
        if is_transposed or (x.isfinite().all() and w.isfinite().all()):
            return made
        return _convolve_inside(made, x, w, bias, stride, padding, dilation, groups)


def _norm_rows(func: Any, made: Any, x: torch.Tensor, *options: Any) -> Any:
    """Norm as torch did to make ``made``, with its other results of infinite and of large numbers.

    The mean of a row with an infinite number is infinite or NaN, by its place; all else of such a row is NaN. A row
    whose variance overflows becomes NaN or the norm of zeros, by its length.
    """
    result, mean, scale = made
    rows = x.reshape(mean.numel(), -1)
    mean = torch.where(mean.isfinite(), mean, rows.mean(-1).reshape(mean.shape).to(mean.dtype))
    is_large = rows.double().var(-1, correction=0) > torch.finfo(scale.dtype).max
    if is_large.any():
        result = func(rows.masked_fill(is_large[:, None], 0.0).reshape(x.shape), *options)[0]
        scale = scale.masked_fill(is_large.reshape(scale.shape), 0.0)
    return result, mean, scale


def _differentiate_rows(func: Any, made: Any, args: Sequence[Any]) -> Any:
    """Return the gradients of a norm; rows whose variance overflowed count as zeros."""
    place = _GRADIENTS_OF_ROWS[func]
    x, mean, scale = args[1], args[place], args[place + 1]
    is_large = (scale == 0).reshape(-1)
    if not is_large.any():
        return made
    flat = list(args)
    flat[1] = x.reshape(mean.numel(), -1).masked_fill(is_large[:, None], 0.0).reshape(x.shape)
    flat[place] = mean.masked_fill(is_large.reshape(mean.shape), 0.0)
    return func(*flat)


def _norm_centered(
    made: Any, x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None,
    running_mean: torch.Tensor | None, running_variance: torch.Tensor | None, training: bool, _: float, eps: float,
) -> Any:  # fmt: skip
    """Norm as torch did to make ``made``; the mean is subtracted before the weight multiplies."""
    mean, scale = made[1:]
    if not training:
        assert running_mean is not None and running_variance is not None
        mean, scale = running_mean, (running_variance + eps).rsqrt()
    of_channel = (1, -1, *[1] * (x.dim() - 2))
    normed = (x - mean.reshape(of_channel)) * scale.reshape(of_channel)
    normed = normed if weight is None else normed * weight.reshape(of_channel)
    return (normed if bias is None else normed + bias.reshape(of_channel)).to(x.dtype), *made[1:]


def _convolve_padded(
    x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None, stride: Any, padding: Any, dilation: Any,
    is_transposed: bool, *rest: Any,
) -> torch.Tensor:  # fmt: skip
    """Convolve with zeros around the input: some of torch's kernels skip them, others multiply them with weights."""
    if not is_transposed:
        sizes = [*padding] * (x.dim() - 2) if len(padding) == 1 else padding
        x = torch.nn.functional.pad(x, [each for size in reversed(sizes) for each in (size, size)])
        padding = [0] * len(sizes)
    made: torch.Tensor = _CONVOLUTION(x, w, bias, stride, padding, dilation, is_transposed, *rest)
    return made


def _convolve_inside(
    made: torch.Tensor, x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None,
    stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], groups: int,
) -> torch.Tensor:  # fmt: skip
    """Convolve as torch did to make ``made``, without padding."""
    axes = x.dim() - 2
    how = [list(each) * (axes // len(each)) for each in (stride, padding, dilation)]
    result = torch.zeros(made.shape)
    result += 0 if bias is None else bias.float().reshape(-1, *[1] * axes)
    whole = (slice(None), slice(None))
    of_groups = w.float().reshape(groups, len(w) // groups, w.shape[1], -1)
    for number, tap in enumerate(product(*(range(size) for size in w.shape[2:]))):
        read, written = [], []
        for size, results, at, step, pad, gap in zip(x.shape[2:], made.shape[2:], tap, *how, strict=True):
            start = at * gap - pad  # the first result reads there
            first = max(0, -(start // step))
            end = max(first, min(results, (size - 1 - start) // step + 1))
            written.append(slice(first, end))
            read.append(slice(start + first * step, max(0, start + (end - 1) * step + 1), step))
        part = x[(*whole, *read)].float()
        part = part.reshape(len(part), groups, w.shape[1], *part.shape[2:])
        added = torch.einsum("ngc...,goc->ngo...", part, of_groups[..., number])
        result[(*whole, *written)] += added.flatten(1, 2)
    return result.to(made.dtype)


def _attend(
    made: Any, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, dropout: float = 0.0,
    is_causal: bool = False, *, attn_mask: torch.Tensor | None = None, scale: float | None = None,
) -> Any:  # fmt: skip
    """Attend as torch did to make ``made``, without values whose weights are zero."""
    if dropout or all(each.isfinite().all() for each in (queries, keys, values)):
        return made
    scores = queries.float() @ keys.float().mT * (queries.shape[-1] ** -0.5 if scale is None else scale)
    seen = torch.ones(scores.shape, dtype=torch.bool)
    if is_causal:
        seen = seen.tril()
    if attn_mask is not None:
        scores, seen = scores + attn_mask, seen & (attn_mask != float("-inf"))
    scores = scores.masked_fill(~seen, float("-inf"))
    weights = scores.softmax(-1).masked_fill((scores == float("-inf")).all(-1, keepdim=True), 0.0)
    result = torch.empty(made[0].shape)
    for row in range(scores.shape[-2]):
        of_row = weights[..., row, :, None]
        result[..., row, :] = (of_row * values.float()).masked_fill(of_row == 0, 0.0).sum(-2)
    return result.to(made[0].dtype), made[1]
