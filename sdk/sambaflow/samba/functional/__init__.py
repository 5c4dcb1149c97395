"""Operators as functions: torch's, applied to SambaTensors.

Source: SDK reference 3 and 4.3. The vendor's modules, such as ``functional.arithmetic``, group torch's functions. The
groups are not public, so each module has all functions.
"""

import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import torch

from sambaflow.samba.sambatensor import has_empty, infer, unwrap, wrap
from sambaflow.tracing.torch_private import DisableTorchFunctionSubclass


def torch_function(name: str) -> Callable[..., Any]:
    """Return ``torch.<name>`` or ``torch.nn.functional.<name>``, on SambaTensors.

    Raises:
        AttributeError: torch has no such function.
    """
    function = getattr(torch, name, None) or getattr(torch.nn.functional, name, None)
    if not callable(function):
        raise AttributeError(f"module 'sambaflow.samba' has no attribute {name!r}")  # noqa: TRY004 - as Python says it

    def call(*args: Any, **kwargs: Any) -> Any:
        if kwargs.pop("out", None) is not None:
            raise TypeError(f"samba.{name}: out= is not supported on the device; use the returned tensor")
        if has_empty((args, kwargs)):
            return infer(function, args, kwargs)
        with DisableTorchFunctionSubclass():
            return wrap(function(*unwrap(list(args)), **unwrap(kwargs)))

    call.__name__ = name
    return call


def addmm(
    input: Any, mat1: Any, mat2: Any, *, beta: float = 1, alpha: float = 1, out: None = None,
    is_transposed: bool = False,
) -> Any:  # fmt: skip
    """Compute beta * input [.., N] + alpha * mat1 [.., M, K] @ mat2 [K, N]; ``mat1`` may have batch dims.

    With ``is_transposed`` ``mat2`` is given as [N, K]: a linear layer's weight.
    """
    if out is not None:
        raise TypeError("samba.addmm: out= is not supported on the device; use the returned tensor")
    bias, first, second = unwrap(input), unwrap(mat1), unwrap(mat2)
    with DisableTorchFunctionSubclass():
        if is_transposed and beta == 1 and alpha == 1 and bias.dim() == 1:
            return wrap(torch.nn.functional.linear(first, second, bias))
        second = second.t() if is_transposed else second
        if first.dim() == 2:
            return wrap(torch.addmm(bias, first, second, beta=beta, alpha=alpha))
        return wrap(beta * bias + alpha * torch.matmul(first, second))


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(name)
    return torch_function(name)


def _module_of_functions(name: str) -> ModuleType:
    """Make the submodule ``name``, which has every function of torch."""
    made = ModuleType(f"{__name__}.{name}", "Functions of torch on SambaTensors, under the vendor's module name.")
    made.__spec__ = ModuleSpec(made.__name__, None)
    vars(made)["__getattr__"] = __getattr__
    sys.modules[made.__name__] = made
    return made


arithmetic, logical, loss, reduce, tensorarithmetic, tensorops = map(
    _module_of_functions, ("arithmetic", "logical", "loss", "reduce", "tensorarithmetic", "tensorops")
)

from sambaflow.samba.functional import stir  # noqa: E402
from sambaflow.samba.sn_private import (  # noqa: E402
    groupby,
    sn_gather,
    sn_multinomial,
    sn_reduce,
    sn_scatter,
    triu_fill,
)

__all__ = [
    "addmm",
    "arithmetic",
    "groupby",
    "logical",
    "loss",
    "reduce",
    "sn_gather",
    "sn_multinomial",
    "sn_reduce",
    "sn_scatter",
    "stir",
    "tensorarithmetic",
    "tensorops",
    "torch_function",
    "triu_fill",
]
