"""Products of groups of rows with a matrix each, in generated code: one product of torch's a group that has rows.

Groups follow each other: ``ends`` [G] holds, for each, the number of rows up to its last. Source: ours.
"""

from collections.abc import Iterator
from typing import Any, Final

import torch


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
