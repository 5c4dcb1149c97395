"""Operators on int8 weights, as they stand in a portable graph: ``rdukit.int8_linear``.

A weight [N, K] is int8 with a scale for each of its rows; activations keep their dtype and sums are in f32.
Source: ours.
"""

from functools import cache
from typing import Any, Final

import torch

from rdukit_compiler.backend.operators import define_operators

#: The operator's name in graphs; the runtime knows it by this name.
INT8_LINEAR: Final = "rdukit.int8_linear.default"


@cache
def _library() -> torch.library.Library:
    signature = "(Tensor x, Tensor w, Tensor scale, Tensor? bias) -> Tensor"
    return define_operators({"int8_linear": signature}, {"int8_linear": _made})


def _made(x: torch.Tensor, w: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return x.new_empty((*x.shape[:-1], w.shape[0]))


def int8_linear(
    x: torch.Tensor, w: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:  # fmt: skip
    """For tracing: x [..., K], w int8 [N, K], scale f32 [N], bias [N] → [..., N]; computes nothing itself."""
    made: torch.Tensor = operator_int8_linear()(x, w, scale, bias)
    return made


def operator_int8_linear() -> Any:
    """The torch operator, registered."""
    _library()
    return torch.ops.rdukit.int8_linear.default


def int8_embedding(w: torch.Tensor, indices: torch.Tensor, scale: torch.Tensor, like: torch.dtype) -> torch.Tensor:
    """Rows of an int8 weight: w [N, D], indices [...] → [..., D] in dtype ``like``."""
    rows: torch.Tensor = torch.ops.aten.index.Tensor(w, [indices])
    scales: torch.Tensor = torch.ops.aten.index.Tensor(scale, [indices])
    return (rows.to(torch.float32) * scales.unsqueeze(-1)).to(like)
