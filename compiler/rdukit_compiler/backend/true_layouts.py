"""Operators whose result lies otherwise in memory than torch's record of them says, and how it does lie.

It decides whether ``reshape`` and its like give a view, through which a write is seen. Found by running each operator
of torch's table ``op_db`` on operands in another order.
"""

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import _prims_common

aten = torch.ops.aten

#: Their results are without gaps, in the order of the axes, or in the other common one where the operand is.
_PLAIN: Final = frozenset({
    aten.batch_norm.default, aten.upsample_nearest1d.default, aten.upsample_nearest1d.vec,
    aten._upsample_nearest_exact1d.default, aten._upsample_nearest_exact1d.vec,
})  # fmt: skip
#: They are elementwise, and their results lie as their operands do.
_ELEMENTWISE: Final = frozenset({
    aten.copysign.Tensor, aten.copysign.Scalar, aten.floor_divide.default, aten.floor_divide.Scalar,
    aten.div.Tensor_mode, aten.div.Scalar_mode,
})  # fmt: skip


def find_true_stride(func: Any, args: Sequence[Any], made: torch.Tensor) -> tuple[int, ...] | None:
    """The strides of what ``func`` makes of ``args``, of which torch's record is ``made``; None where that is right."""
    operands = [argument for argument in args if isinstance(argument, torch.Tensor)]
    if not operands:  # all are numbers, as in torch.div(x.size(0), 2, rounding_mode="trunc")
        return None
    if func in _ELEMENTWISE:
        alike = [torch.empty_strided(t.shape, t.stride(), device="meta") for t in operands]
        strides = torch.add(alike[0], alike[1] if len(alike) > 1 else 1).stride()
    elif func in _PLAIN:
        order = _prims_common.suggest_memory_format(operands[0])
        strides = tuple(torch.empty(made.shape, device="meta", memory_format=order).stride())
    else:
        return None
    return None if strides == made.stride() else strides
