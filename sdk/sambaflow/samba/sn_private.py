"""Block gather and scatter, sampling, reduction. Source: SDK reference 10.

Legend: B batched dims, which correspond one to one; I index dims; L the block's lengths, one per dim after the batched
dims. ``gather_dims`` and ``scatter_dims`` count after the batched dims.
"""

from collections.abc import Sequence
from math import prod
from typing import Any

import torch

from rdukit.errors import InvalidArgument
from sambaflow.samba.functional.stir import _has_samba, reduce_named
from sambaflow.samba.sambatensor import unwrap, wrap


def sn_gather(
    input: Any, start_indices: Any, gather_dims: Sequence[int], gather_lengths: Sequence[int], batched_dims: int = 0
) -> Any:
    """Return, for each index tuple, a block of ``gather_lengths`` along ``gather_dims``, complete along the other dims.

    input [B, D], start_indices [B, I, len(gather_dims)] → [B, I, L]. A position outside the input reads the nearest
    element instead (Source: ours).

    Raises:
        InvalidArgument: shapes or dims that do not fit.
    """
    source, starts = unwrap(input), unwrap(start_indices)
    lengths = list(source.shape[batched_dims:])
    for dim, length in zip(gather_dims, gather_lengths, strict=True):
        lengths[dim] = int(length)
    linear, _ = _addresses(source, starts, gather_dims, lengths, batched_dims)
    batch, index = source.shape[:batched_dims], starts.shape[batched_dims:-1]
    flat = source.reshape(prod(batch), -1)
    made = torch.gather(flat, 1, linear.reshape(prod(batch), -1)).reshape(*batch, *index, *lengths)
    return wrap(made) if _has_samba((input, start_indices)) else made


def sn_scatter(
    operand: Any, update: Any, start_indices: Any, scatter_dims: Sequence[int], rmw_op: str = "kUpdate",
    unique_indices: bool = False, batched_dims: int = 0,
) -> Any:  # fmt: skip
    """Put blocks into a copy of ``operand``; elements whose index is out of range are ignored.

    operand [B, D], update [B, I, L], start_indices [B, I, len(scatter_dims)] → [B, D]. ``rmw_op``: ``kUpdate``
    replaces, ``kAdd`` adds.

    Raises:
        InvalidArgument: shapes or dims that do not fit, or another ``rmw_op``.
    """
    if rmw_op not in {"kUpdate", "kAdd"}:
        raise InvalidArgument(f"sn_scatter: rmw_op={rmw_op!r} is not valid; expected kUpdate, kAdd")
    target, values, starts = unwrap(operand), unwrap(update), unwrap(start_indices)
    batch, index = target.shape[:batched_dims], starts.shape[batched_dims:-1]
    lengths = list(values.shape[batched_dims + len(index) :])
    if len(lengths) != target.dim() - batched_dims:
        raise InvalidArgument(
            f"sn_scatter: update {list(values.shape)} does not fit operand {list(target.shape)}: expected "
            f"{batched_dims} batched dims, {len(index)} index dims, and one block length per other dim"
        )
    linear, valid = _addresses(target, starts, scatter_dims, lengths, batched_dims)
    rows, size = prod(batch), prod(target.shape[batched_dims:])
    # an additional column takes elements out of range
    linear = torch.where(valid, linear, torch.full((), size, dtype=linear.dtype)).reshape(rows, -1)
    flat = torch.cat([target.reshape(rows, size), torch.zeros((rows, 1), dtype=target.dtype)], 1)
    source = values.to(target.dtype).expand(*batch, *index, *lengths).reshape(rows, -1)
    made = flat.scatter(1, linear, source) if rmw_op == "kUpdate" else flat.scatter_add(1, linear, source)
    made = made[:, :size].reshape(target.shape)
    return wrap(made) if _has_samba((operand, update, start_indices)) else made


def _addresses(
    tensor: torch.Tensor, starts: torch.Tensor, dims: Sequence[int], lengths: Sequence[int], batched: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return flat positions [B, I, prod(L)] after the batched dims, clamped into range, and a mask of those in
    range.
    """
    sizes = list(tensor.shape[batched:])
    if not all(0 <= d < len(sizes) for d in dims) or starts.shape[-1] != len(dims):
        raise InvalidArgument(
            f"dims {list(dims)} and indices {list(starts.shape)} do not fit {list(tensor.shape)} with "
            f"batched_dims={batched}; legal dims: 0..{len(sizes) - 1}, one number per dim in the last axis of indices"
        )
    starts = starts.to(torch.int64).expand(*tensor.shape[:batched], *starts.shape[batched:])
    linear = torch.zeros((), dtype=torch.int64)
    valid = torch.ones((), dtype=torch.bool)
    stride = 1
    for dim in reversed(range(len(sizes))):
        view = [1] * len(sizes)
        view[dim] = lengths[dim]
        place = torch.arange(lengths[dim]).reshape(view)
        if dim in dims:
            begin = starts[..., list(dims).index(dim)]
            place = begin.reshape(*begin.shape, *[1] * len(sizes)) + place
            valid = valid & (place >= 0) & (place < sizes[dim])
            place = place.clamp(0, sizes[dim] - 1)
        linear = linear + place * stride
        stride *= sizes[dim]
    shape = (*starts.shape[:-1], *lengths)
    return linear.expand(shape), valid.expand(shape)


def sn_multinomial(probs: Any, pre_generated_randoms: Any) -> Any:
    """Sample an index per row by inverting the cumulative sum: probs [N, K], randoms [N, 1] in 0..1 → [N, 1] int32."""
    weights, randoms = unwrap(probs), unwrap(pre_generated_randoms)
    total = torch.cumsum(weights, -1)
    below = (total <= randoms.reshape(-1, 1) * total[..., -1:]).to(torch.int32)
    made = below.sum(-1, keepdim=True, dtype=torch.int32).clamp(0, weights.shape[-1] - 1)
    return wrap(made) if _has_samba((probs, pre_generated_randoms)) else made


def sn_reduce(input: Any, dim: int | Sequence[int] | None, fn: str) -> Any:
    """Reduce by name: MIN, MAX, SUM, MEAN; reduced dimensions are kept as 1.

    Raises:
        InvalidArgument: an unknown name.
    """
    made = reduce_named(unwrap(input), dim, fn)
    return wrap(made) if _has_samba((input,)) else made


def triu_fill(input: Any, value: float) -> Any:
    """Fill strictly above the diagonal of the last two dims with ``value``; the diagonal stays."""
    plain = unwrap(input)
    rows, columns = plain.shape[-2:]
    above = torch.arange(columns).reshape(1, columns) > torch.arange(rows).reshape(rows, 1)
    made = torch.where(above, torch.full((), value, dtype=plain.dtype), plain)
    return wrap(made) if _has_samba((input,)) else made


def groupby(
    t: Any, num_bins: int = 32, capacity: int = 1, samples_to_reset: int = 1, with_hist_buffer: bool = False,
    no_overflow_bin: bool = False,
) -> Any:  # fmt: skip
    """Return the positions of each bin's samples: t [N] bin numbers → (positions [bins, capacity], counts [bins]),
    int32.

    Unused positions hold N. With ``no_overflow_bin``, samples beyond a bin's capacity are dropped; otherwise they go,
    in order, to an additional bin at the end. ``samples_to_reset`` and ``with_hist_buffer`` are accepted. Source: ours;
    only the signature is public.
    """
    bins = unwrap(t).reshape(-1).to(torch.int64)
    samples = bins.shape[0]
    member = (bins.reshape(-1, 1) == torch.arange(num_bins).reshape(1, -1)).to(torch.int64)  # [N, bins]
    rank = (torch.cumsum(member, 0) * member).sum(-1) - 1
    if not no_overflow_bin:
        over = (rank >= capacity).to(torch.int64)
        bins = torch.where(over > 0, torch.full((), num_bins, dtype=torch.int64), bins)
        rank = torch.where(over > 0, torch.cumsum(over, 0) - 1, rank)
    count = num_bins if no_overflow_bin else num_bins + 1
    empty = torch.full((count, capacity), samples, dtype=torch.int32)
    places = torch.arange(samples, dtype=torch.int32).reshape(samples, 1, 1)
    positions = sn_scatter(empty, places, torch.stack([bins, rank], -1), [0, 1])
    made = (positions, (positions < samples).to(torch.int32).sum(-1, dtype=torch.int32))
    return wrap(made) if _has_samba((t,)) else made


__all__ = ["groupby", "sn_gather", "sn_multinomial", "sn_reduce", "sn_scatter", "triu_fill"]
