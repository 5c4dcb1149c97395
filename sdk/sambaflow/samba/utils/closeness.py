"""How far two tensors are apart: a measure by which bf16 passes the published thresholds and a wrong kernel does not.

Rounding leaves noise: of either sign, spread over all numbers, and where terms cancel, as in the gradients of a few
layers, ten times what one rounding does. A wrong kernel leaves a pattern: all numbers are off by one factor, a row is
another's, a term is missing everywhere. So a difference ``d`` from ``g`` is taken apart:

========  ============================================================================================================
scale     half the relative difference of energies, the sums of squares, less what noise alone would do to it. It may be
          the threshold: what is scaled by 1.01 fails 3e-3
shift     the mean of ``d`` over the root mean square of ``g``, less two standard deviations of what noise makes of it.
          It may be the threshold: rounding has either sign, so that in correct bf16 it is far below
noise     the root mean square of ``d`` over that of ``g``. It may be ``NOISE`` times the threshold; but its square, in
          terms of energy, not more than the threshold itself
outliers  the same for every slice along every axis, over the magnitude that is usual there. A slice may have
          ``OUTLIER`` times as much: a wrong row among thousands is not lost in the mean
========  ============================================================================================================

The largest difference over the largest magnitude, which ``assert_close`` took before, fails both ways: it refuses
correct bf16 by chance, the sooner the larger a tensor is, and passes whatever happens to small numbers beside a large
one. Source: ours; the vendor's formula is not published, its thresholds of 3e-3 to 8.5e-2 are.
"""

from typing import Final

import torch

#: How many times the threshold the noise may be, and how many times the usual noise that of a slice. Fewer than
#: ``MANY`` numbers are nearer to a single one, whose difference is compared with the threshold itself.
NOISE: Final = 6.0
OUTLIER: Final = 4.0
MANY: Final = 16


def closeness_error(first: torch.Tensor, second: torch.Tensor) -> float:
    """The error between two tensors of one shape, in any order, to be compared with a threshold.

    Infinity if a number is not finite in one of them only; numbers that are infinite or NaN in both are equal.
    """
    a, b = (tensor.detach().to(torch.float64) for tensor in (first, second))
    if (a.isfinite() != b.isfinite()).any() or ((a != b) & a.isinf()).any():
        return float("inf")
    a, b = (tensor.nan_to_num(0.0, 0.0, 0.0) for tensor in (a, b))
    if torch.equal(a, b):
        return 0.0
    apart, magnitude = a - b, torch.maximum(a.abs(), b.abs())
    usual = _root_mean_square(magnitude)
    noise = float(_root_mean_square(apart) / usual)
    slices = [_slices(apart, dim) / _slices(magnitude, dim).clamp_min(usual) for dim in range(a.dim())]
    worst = max((float(each.max()) for each in slices), default=0.0)
    allowed = max(1.0, NOISE * min(1.0, (a.numel() / MANY) ** 0.5))
    shift: float = max(0.0, float(apart.mean().abs() / usual) - 2 * noise / a.numel() ** 0.5)
    return max(_counted(noise, allowed), _counted(worst, allowed) / OUTLIER, _scale_error(a, b, noise), shift)


def _counted(noise: float, allowed: float) -> float:
    """Noise as the threshold that it needs."""
    return max(noise / allowed, noise**2)


def _scale_error(a: torch.Tensor, b: torch.Tensor, noise: float) -> float:
    """How far the factor between the tensors is from 1, less two standard deviations of what noise makes of it."""
    energy = max(float((a * a).sum()), float((b * b).sum()))
    off = abs(float((a * a).sum() - (b * b).sum())) / 2 / energy
    return off if a.numel() == 1 else max(0.0, off - 2 * noise / a.numel() ** 0.5)


def _root_mean_square(tensor: torch.Tensor, dims: tuple[int, ...] = ()) -> torch.Tensor:
    return tensor.square().mean(dims).sqrt() if dims else tensor.square().mean().sqrt()


def _slices(tensor: torch.Tensor, dim: int) -> torch.Tensor:
    """The root mean square of each slice along ``dim``."""
    others = tuple(d for d in range(tensor.dim()) if d != dim)
    return _root_mean_square(tensor, others) if others else tensor.abs()
