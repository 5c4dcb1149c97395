"""Elementwise programs over whole tensors. Source: SDK reference 10.

The vendor's compiler generates a loop over elements. Here a function is called once, on the broadcast tensors, and
``sn_iteridx`` is a range along a dimension that broadcasts against them. The results are the same.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

import torch

from rdukit.errors import InvalidArgument
from sambaflow.samba.sambatensor import SambaTensor, unwrap, wrap
from sambaflow.samba.utils.numeric import torch_dtype

_inside: ContextVar[int] = ContextVar("inside_zipmapreduce", default=0)

_REDUCTIONS: Final[dict[str, Callable[[torch.Tensor, list[int]], torch.Tensor]]] = {
    "MIN": lambda t, dims: torch.amin(t, dims, keepdim=True),
    "MAX": lambda t, dims: torch.amax(t, dims, keepdim=True),
    "SUM": lambda t, dims: torch.sum(t, dims, keepdim=True, dtype=t.dtype),
    "ADD": lambda t, dims: torch.sum(t, dims, keepdim=True, dtype=t.dtype),
    "MEAN": lambda t, dims: torch.mean(t, dims, keepdim=True),
}


def sn_imm(input: float | int, dtype: Any = None) -> torch.Tensor:
    """Return a constant [], of a torch dtype or an ``SNType``."""
    return torch.full((), input, dtype=torch_dtype(dtype))


def sn_iteridx(attrs: dict[str, Any] | None = None, dim: int = 0, dtype: Any = None) -> torch.Tensor:
    """Return each element's index along ``dim``: a range that broadcasts against the inputs.

    Raises:
        InvalidArgument: ``attrs`` is not the first argument of the function, or lacks the dimension.
    """
    shape = (attrs or {}).get("shape")
    if shape is None:
        raise InvalidArgument("sn_iteridx needs attrs: pass on the first argument of the function in sn_zipmapreduce")
    if not -len(shape) <= dim < len(shape):
        raise InvalidArgument(f"sn_iteridx: dim={dim} is not valid; the inputs broadcast to {list(shape)}")
    view = [1] * len(shape)
    view[dim] = int(shape[dim])
    return torch.arange(int(shape[dim]), dtype=torch_dtype(dtype) or torch.int32).reshape(view)


def sn_select(cond: Any, true_val: Any, false_val: Any) -> Any:
    """Return ``true_val`` where ``cond``, else ``false_val``."""
    made = torch.where(unwrap(cond), unwrap(true_val), unwrap(false_val))
    return wrap(made) if _has_samba((cond, true_val, false_val)) else made


def sn_fma(a: Any, b: Any, c: Any) -> Any:
    """Compute ``a * b + c``, inside ``sn_zipmapreduce`` only.

    Raises:
        InvalidArgument: called outside.
    """
    if not _inside.get():
        raise InvalidArgument("sn_fma is valid only in the function of sn_zipmapreduce; write a * b + c elsewhere")
    return a * b + c


def sn_zipmapreduce(
    func: Callable[..., Any], inputs: Sequence[Any], reduce_func: str | None = None,
    reduce_dim: int | Sequence[int] | None = None, stoc_accum: bool | None = False,
) -> Any:  # fmt: skip
    """Broadcast ``inputs``, call ``func(attrs, *elements)``, and optionally reduce; reduced dimensions are kept as 1.

    The result is a SambaTensor if an input is one, otherwise a torch tensor. ``stoc_accum`` is accepted: accumulation
    is exact.

    Raises:
        InvalidArgument: no inputs, shapes that do not broadcast, or an unknown ``reduce_func``.
    """
    plain = [unwrap(tensor) for tensor in inputs]
    if not plain:
        raise InvalidArgument("sn_zipmapreduce needs at least one input tensor")
    try:
        shape = torch.broadcast_shapes(*(tensor.shape for tensor in plain))  # type: ignore[no-untyped-call]
    except RuntimeError as cause:
        shapes = [list(tensor.shape) for tensor in plain]
        raise InvalidArgument(f"sn_zipmapreduce: the shapes {shapes} do not broadcast") from cause
    with _zip_context():
        made = unwrap(func({"shape": shape}, *(tensor.expand(shape) for tensor in plain)))
    made = torch.as_tensor(made)
    made = made.expand(shape) if made.shape != shape else made
    if reduce_func is not None:
        made = reduce_named(made, reduce_dim, reduce_func)
    return wrap(made) if _has_samba(inputs) else made


def reduce_named(tensor: torch.Tensor, dim: int | Sequence[int] | None, name: str) -> torch.Tensor:
    """Reduce along ``dim`` (all if None) and keep the dimensions.

    Raises:
        InvalidArgument: an unknown reduction.
    """
    key = str(name).upper().removeprefix("K")
    if key not in _REDUCTIONS:
        raise InvalidArgument(f"reduction {name!r} is not valid; expected {', '.join(_REDUCTIONS)}")
    dims = list(range(tensor.dim())) if dim is None else [dim] if isinstance(dim, int) else list(dim)
    return _REDUCTIONS[key](tensor, dims)


@contextmanager
def _zip_context() -> Iterator[None]:
    token = _inside.set(_inside.get() + 1)
    try:
        yield
    finally:
        _inside.reset(token)


def _has_samba(values: Sequence[Any]) -> bool:
    return any(isinstance(value, SambaTensor) for value in values)


__all__ = ["sn_fma", "sn_imm", "sn_iteridx", "sn_select", "sn_zipmapreduce"]
