"""Products of groups of rows with a matrix each, as mixtures of experts make them: ``rdukit.grouped_product``.

How many rows a group has depends on data, how many there are in all does not. torch's own operator exists for bf16
only where graphs are recorded, and has no gradient for every layout; libraries have one of their own in its place.

Source: torch's ``grouped_mm``; what is ours is that rows behind the last group give zeros, where torch gives anything.
"""

from functools import cache
from typing import Any, Final

import torch

from rdukit_compiler.backend.operators import define_operators

#: Rows x [S, K] of which the first ends[0] belong to group 0, those up to ends[1] to group 1, and so on.
_SIGNATURES: Final = {
    # w [G, K, N] → [S, N]: each row times its group's matrix.
    "grouped_product": "(Tensor x, Tensor w, Tensor ends) -> Tensor",
    # dy [S, N] → [G, K, N]: each group's x transposed times its dy.
    "grouped_outer_product": "(Tensor x, Tensor dy, Tensor ends) -> Tensor",
}


def grouped_mm(
    x: torch.Tensor, w: torch.Tensor, offs: torch.Tensor | None = None, bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:  # fmt: skip
    """``aten._grouped_mm`` in operators that every dtype has: rows by groups, or a batch; else torch's own."""
    if bias is not None or x.dim() + w.dim() != (5 if offs is not None else 6):
        return torch.ops.aten._grouped_mm.default(x, w, offs, bias, out_dtype)  # type: ignore[no-any-return]
    dtype = torch.promote_types(x.dtype, w.dtype)
    x, w = x.to(dtype), w.to(dtype)
    made: torch.Tensor
    if offs is None:
        made = torch.bmm(x, w)
    elif x.dim() == 2:
        made = operators()["grouped_product"](x, w, offs)
    else:  # columns of w by groups
        made = operators()["grouped_product"](w.transpose(0, 1), x.transpose(1, 2), offs).transpose(0, 1)
    return made if out_dtype is None else made.to(out_dtype)


@cache
def _library() -> torch.library.Library:
    library = define_operators(_SIGNATURES, _SHAPES)
    torch.library.register_autograd("rdukit::grouped_product", _gradients, setup_context=_save, lib=library)
    return library


def operators() -> dict[str, Any]:
    """The torch operators by name, registered; they compute nothing themselves."""
    _library()
    return {name: getattr(torch.ops.rdukit, name).default for name in _SIGNATURES}


def _product(x: torch.Tensor, w: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    return x.new_empty((x.shape[0], w.shape[2]))


def _outer_product(x: torch.Tensor, dy: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    return x.new_empty((ends.shape[0], x.shape[1], dy.shape[1]))


_SHAPES: Final[dict[str, Any]] = {"grouped_product": _product, "grouped_outer_product": _outer_product}


def _save(ctx: Any, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _gradients(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    x, w, ends = ctx.saved_tensors
    wanted_x, wanted_w, _ = ctx.needs_input_grad
    dx = operators()["grouped_product"](dy, w.transpose(1, 2), ends) if wanted_x else None
    return dx, operators()["grouped_outer_product"](x, dy, ends) if wanted_w else None, None
