"""Random and constant SambaTensors: torch's functions with a name and dims.

Source: SDK reference 4.2. Values come from torch's global generator, so ``set_seed`` makes them reproducible: a
program builds the same inputs when it compiles and when it runs.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from sambaflow.samba.sambatensor import SambaTensor, unwrap


class Creator(Protocol):
    """A torch creation function that takes SambaTensor's naming arguments too."""

    def __call__(
        self, *args: Any, name: str = "", batch_dim: int | None = None, named_dims: Sequence[str | None] | None = None,
        sized_dims: Sequence[int | None] | None = None, region_name: str | None = None, **torch_arguments: Any,
    ) -> SambaTensor: ...  # fmt: skip


def _creator(function: Callable[..., torch.Tensor]) -> Creator:
    def create(
        *args: Any, name: str = "", batch_dim: int | None = None, named_dims: Sequence[str | None] | None = None,
        sized_dims: Sequence[int | None] | None = None, region_name: str | None = None, **torch_arguments: Any,
    ) -> SambaTensor:  # fmt: skip
        made = function(*unwrap(list(args)), **unwrap(torch_arguments))
        return SambaTensor(
            made, name=name or None, batch_dim=batch_dim, named_dims=named_dims, sized_dims=sized_dims,
            region_name=region_name,
        )  # fmt: skip

    create.__name__ = function.__name__
    create.__doc__ = f"``torch.{function.__name__}`` as a named SambaTensor."
    return create


arange = _creator(torch.arange)
full = _creator(torch.full)
normal = _creator(torch.normal)
ones = _creator(torch.ones)
rand = _creator(torch.rand)
randint = _creator(torch.randint)
randn = _creator(torch.randn)
randn_like = _creator(torch.randn_like)
tensor = _creator(torch.tensor)
zeros = _creator(torch.zeros)
