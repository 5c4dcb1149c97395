"""Group norm of operands that lie otherwise in memory than when they were recorded.

Torch's operator takes its operand without gaps in one of the two usual orders, and its callers bring it there. A
recorded call has none of these copies where a copy was not needed; a view of axes of one element may come with other
strides than its record, and then it is. Source: ours.
"""

from typing import Any, Final

import torch

aten = torch.ops.aten


def group_norm(x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """``aten.native_group_norm``; ``x`` is ``[N, C, …]``."""
    return aten.native_group_norm.default(_settled(x), *args, **kwargs)


def group_norm_backward(dy: torch.Tensor, x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """``aten.native_group_norm_backward``; ``dy`` and ``x`` are ``[N, C, …]``."""
    x = _settled(x)
    if dy.stride() != x.stride():
        dy = torch.empty_like(x).copy_(dy)
    return aten.native_group_norm_backward.default(dy, x, *args, **kwargs)


def _settled(x: torch.Tensor) -> torch.Tensor:
    """``x`` in the order of its axes, or with channels last where it lies so already."""
    if x.is_contiguous():
        return x
    if x.dim() == 4 and x.stride() == torch.empty(x.shape, device="meta", memory_format=torch.channels_last).stride():
        return x
    return x.contiguous()


NORM_OPERATORS: Final[dict[str, Any]] = {
    "aten.native_group_norm.default": group_norm, "aten.native_group_norm_backward.default": group_norm_backward,
}  # fmt: skip
