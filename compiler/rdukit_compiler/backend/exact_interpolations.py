"""Exact forms of interpolations that inductor computes wrongly, as in ``exact_operators``.

Inductor errs at infinity, with narrow numbers, and where the given factor differs from the ratio of sizes.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch

aten = torch.ops.aten


def _wide(x: torch.Tensor) -> torch.Tensor:
    """Return f32 for narrower numbers."""
    return x.float() if x.dtype in {torch.bfloat16, torch.float16} else x


def _zeros(like: torch.Tensor, axis: int, size: int) -> torch.Tensor:
    """Return zeros with the shape of ``like``, but ``size`` along an axis."""
    shape = [*like.shape]
    shape[axis] = size
    return torch.zeros(shape, dtype=like.dtype)


def _interpolate(axes: int) -> Callable[..., Any]:
    """Return the form of a linear interpolation: both neighbours are weighted.

    Inductor adds a share of their difference, which is NaN if both are infinite, or if one with weight 0 is.

    Like torch, narrow numbers are computed in f32; for one axis and for three, weights are rounded.
    """

    def form(x: torch.Tensor, sizes: Sequence[int], align_corners: bool, *scales: float | None) -> Any:
        if not x.is_floating_point():
            return NotImplemented
        made = _wide(x)
        shares = made.dtype if axes == 2 else x.dtype
        for axis, size, scale in zip(
            range(-1, -axes - 1, -1), reversed(sizes), [*reversed(scales), *[None] * axes], strict=False
        ):
            made = _interpolate_along(made, axis, size, align_corners, scale, shares)
        return made.to(x.dtype)

    return form


def _interpolate_along(
    x: torch.Tensor, axis: int, size: int, align_corners: bool, scale: float | None, shares: torch.dtype
) -> torch.Tensor:
    """Interpolate along one axis; the weights of both neighbours are rounded to dtype ``shares``."""
    if size == x.shape[axis]:  # torch adds 0 * x, which is NaN for infinity
        return x + x * 0
    first, second, share = _neighbours(x.shape[axis], size, align_corners, scale, x.dtype)
    share = _along(share.to(shares), axis)
    rest = (1 - share).to(x.dtype)
    ahead = [None] * (x.dim() + axis)
    before, after = (aten._unsafe_index(x, [*ahead, at]) for at in (first, second))
    made: torch.Tensor = before * rest + after * share.to(x.dtype)
    return made


def _neighbours(
    given: int, size: int, align_corners: bool, scale: float | None, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the positions of both neighbours of each of ``size`` results, and the weight of the second [size]."""
    places = torch.arange(size, dtype=dtype)
    if align_corners:
        step = (given - 1) / (size - 1) if size > 1 else 0.0
        places, last = places * step, (size - 1) * step
    else:
        step = 1 / scale if scale is not None and scale > 0 else given / size
        places, last = ((places + 0.5) * step - 0.5).clamp_min(0), (size - 0.5) * step - 0.5
    first = places.to(torch.int64)
    share = places - first
    if last > given - 0.01:  # otherwise all positions lie inside, however they are rounded
        first, share = first.clamp_max(given - 1), (places - first.clamp_max(given - 1)).clamp(0, 1)
    return first, (first + 1).clamp_max(given - 1), share


def _along(values: torch.Tensor, axis: int) -> torch.Tensor:
    """Return values [n] with the shape of an axis, counted from the last: [n, 1, …]."""
    return values.reshape([-1] + [1] * (-axis - 1))


def _bilinear_gradient(
    gradient: torch.Tensor, sizes: Sequence[int], of: Sequence[int], align_corners: bool, *scales: float | None
) -> Any:
    """Return the gradient of an interpolation along the last two axes; inductor has no form of it.

    Like torch, narrow numbers are added in f32.
    """
    made = _wide(gradient)
    for axis, size, scale in zip((-1, -2), reversed(sizes), [*reversed(scales), None, None], strict=False):
        given = of[axis]
        if size == given:
            made = made + made * 0
            continue
        first, second, share = _neighbours(given, size, align_corners, scale, made.dtype)
        added = _zeros(made, axis, given).index_add(axis, first, made * _along(1 - share, axis))
        made = added.index_add(axis, second, made * _along(share, axis))
    return made.to(gradient.dtype)


def _nearest(axes: int, shift: float) -> Callable[..., Any]:
    """Return the form of a nearest-element interpolation, for cases in which torch does not use the sizes alone.

    Inductor uses the factors even along an axis that keeps its size, and computes in another precision (pytorch issues
    198201 and 175154).
    """

    def form(x: torch.Tensor, sizes: Sequence[int], *scales: float | None) -> Any:
        given = x.shape[-axes:]
        if _are_whole(given, sizes, scales):
            return NotImplemented
        is_last = axes == 3 and x.is_contiguous(memory_format=torch.channels_last_3d)
        made = x
        for number, each in enumerate(_nearest_places(given, sizes, scales, shift, by_sizes=axes == 2 or is_last)):
            made = aten._unsafe_index(made, [*[None] * (x.dim() - axes + number), each])
        return made

    return form


def _nearest_gradient(axes: int, shift: float) -> Callable[..., Any]:
    """Return the gradient of ``_nearest``. Like torch, narrow numbers are added in f32.

    For two axes inductor ignores the factors.
    """

    def form(
        gradient: torch.Tensor, sizes: Sequence[int], of: Sequence[int], *scales: float | None
    ) -> Any:  # fmt: skip
        given = of[-axes:]
        if _are_whole(given, sizes, scales):
            return NotImplemented
        made = _wide(gradient)
        for number, places in enumerate(_nearest_places(given, sizes, scales, shift)):
            axis = gradient.dim() - axes + number
            made = _zeros(made, axis, given[number]).index_add(axis, places, made)
        return made.to(gradient.dtype)

    return form


def _are_whole(given: Sequence[int], sizes: Sequence[int], scales: Sequence[float | None]) -> bool:
    """Return whether each size is a multiple of the old one, by the given factor if there is one."""
    factors = [*scales, *[None] * len(sizes)]
    return all(
        size % old == 0 and factor in {None, size / old}
        for old, size, factor in zip(given, sizes, factors, strict=False)
    )  # fmt: skip


def _nearest_places(
    given: Sequence[int], sizes: Sequence[int], scales: Sequence[float | None], shift: float, by_sizes: bool = True
) -> list[torch.Tensor]:
    """Return the index of the nearest element for each result along each axis, computed in f32 as in torch.

    Args:
        by_sizes: ignore the factor where a size is unchanged or doubled, as torch does for two axes and in gradients.
    """
    made = []
    for old, size, factor in zip(given, sizes, [*scales, *[None] * len(sizes)], strict=False):
        places = torch.arange(size)
        if by_sizes and shift == 0 and size in {old, 2 * old}:
            made.append(places // (size // old))
            continue
        step = 1 / factor if factor is not None and factor > 0 else old / size
        near = ((places.to(torch.float32) + shift) * step).floor()
        made.append(near.to(torch.int64).clamp_max(old - 1))
    return made


#: Operator → its form.
INTERPOLATIONS: Final[Mapping[Any, Callable[..., Any]]] = {
    aten.upsample_linear1d.default: _interpolate(1),
    aten.upsample_bilinear2d.default: _interpolate(2),
    aten.upsample_bilinear2d_backward.default: _bilinear_gradient,
    aten.upsample_trilinear3d.default: _interpolate(3),
    **{
        getattr(aten, f"{name}{axes}d{part}").default: form(axes, shift)
        for name, shift in (("upsample_nearest", 0.0), ("_upsample_nearest_exact", 0.5))
        for axes in (1, 2, 3)
        for part, form in (("", _nearest), ("_backward", _nearest_gradient))
    },
}
