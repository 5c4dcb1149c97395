"""Calling one operator of a model graph: how a section is traced, and how dtypes are found."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from rdukit.errors import CompileError
from rdukit_compiler.backend.operators import callable_of, decode
from rdukit_compiler.ir import Operator

#: Operators that take indices or class labels, and integers that torch does not take as such but the device does.
_INDEXING = frozenset("cross_entropy_loss nll_loss nll_loss_nd embedding index_select gather scatter one_hot".split())
_NARROW = frozenset({torch.int8, torch.int16, torch.uint8})


def run_operator(operator: Operator, tensors: dict[str, Any]) -> None:
    """Call one operator on the tensors it names, and add what it makes.

    Operands of mixed floating dtypes are promoted: legal on the device although torch refuses some of them.

    Raises:
        CompileError: torch refuses the operator all the same.
    """
    function = _FORMS.get(operator.op) or callable_of(operator.op)
    args = [decode(a, tensors) for a in operator.args]
    if operator.op_type in _INDEXING:
        args = [as_index(a) for a in args]
    kwargs = {k: decode(v, tensors) for k, v in operator.kwargs.items()}
    try:
        made = function(*args, **kwargs)
    except RuntimeError:
        made = _attempt(function, promote_floats(args) or args, kwargs, operator)
    if len(operator.outputs) == 1 and isinstance(made, torch.Tensor):
        tensors[operator.outputs[0]] = made
    else:
        tensors.update(zip(operator.outputs, made, strict=True))


def _attempt(function: Callable[..., Any], args: list[Any], kwargs: dict[str, Any], operator: Operator) -> Any:
    try:
        return function(*args, **kwargs)
    except RuntimeError as cause:
        where = operator.module or "forward"
        raise CompileError(f"operator {operator.op_type!r} in module {where!r} cannot run: {cause}") from cause


def promote_floats(args: Sequence[Any]) -> list[Any] | None:
    """``args`` with all floating tensors in the widest dtype among them; None if they agree already."""
    floats = {a.dtype for a in args if isinstance(a, torch.Tensor) and a.is_floating_point()}
    if len(floats) < 2:
        return None
    widest = max(floats, key=lambda dtype: (dtype.itemsize, dtype == torch.float32))
    return [a.to(widest) if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in args]


def as_index(value: Any) -> Any:
    """Narrow integers as int64: on the device they index, and are class labels, as they are."""
    return value.long() if isinstance(value, torch.Tensor) and value.dtype in _NARROW else value


def _batch_norm(*args: Any) -> torch.Tensor:
    """With f32 statistics and a bf16 input: fake tensors allow the mix, the CPU does not. Keeps the input's dtype."""
    made: torch.Tensor = torch.ops.aten.batch_norm.default(*(promote_floats(list(args)) or args))
    return made.to(args[0].dtype)


def _dropout(x: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    """As one operator with a mask that is saved; torch's own form fills a mask in place, which cannot be split."""
    plain = not train or p in {0.0, 1.0}
    aten = torch.ops.aten
    made: torch.Tensor = aten.dropout.default(x, p, train) if plain else aten.native_dropout.default(x, p, True)[0]
    return made


def _feature_dropout(x: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    """Dropout of whole channels: x [N, C, …]."""
    if not train or p in {0.0, 1.0}:
        made: torch.Tensor = torch.ops.aten.feature_dropout.default(x, p, train)
        return made
    channels = x.new_ones((*x.shape[:2], *(1 for _ in x.shape[2:])))
    mask: torch.Tensor = torch.ops.aten.native_dropout.default(channels, p, True)[0]
    return x * mask


#: Operators that are called in another form.
_FORMS: dict[str, Callable[..., Any]] = {
    "aten.batch_norm.default": _batch_norm,
    "aten.dropout.default": _dropout,
    "aten.feature_dropout.default": _feature_dropout,
}
