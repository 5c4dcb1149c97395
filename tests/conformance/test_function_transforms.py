"""Transformations of ``torch.func`` inside forward are recorded as what they make of the calls."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, grad_and_value, hessian, jacfwd, jacrev, jvp, vjp, vmap

from sambaflow import samba
from support import shows
from support.programs import compare_step

#: torch's own, of forward-mode gradients.
pytestmark = [
    shows("pytorch", "o0", "o1", "o3"),
    shows("pytorch", "o0", "o1", "o3"),
    pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning"),
]

MODES = ["o0", "o1", "o3"]


class Transforms(nn.Module):
    """``rest(self, x)`` on x [3, 4], with a linear layer [4 → 4]."""

    def __init__(self, rest: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.rest = rest

    def forward(self, x: Any) -> Any:
        return self.rest(self, self.layer(x))


def detached_outside(model: Any, y: Any) -> Any:
    with torch.no_grad():
        found = grad(lambda v: v.pow(3).sum())(y)
    return y * found


def no_grad_inside(model: Any, y: Any) -> Any:
    def inner(v: Any) -> Any:
        with torch.no_grad():
            scale = v.pow(2)
        return (v * scale).sum()

    return grad(inner)(y) + y


def per_sample_gradients(model: Any, y: Any) -> Any:
    weights = {name: tensor.detach() for name, tensor in model.layer.named_parameters()}

    def loss(given: Any, row: Any) -> Any:
        return functional_call(model.layer, given, (row,)).square().sum()

    return vmap(grad(loss), (None, 0))(weights, y)["weight"].sum((1, 2)) + y.sum(1)


def masked(model: Any, y: Any) -> Any:
    rows = torch.arange(3)
    mask = vmap(vmap(lambda a, b: a >= b, (None, 0)), (0, None))(rows, rows)
    return (y @ y.t()).masked_fill(~mask, -1e9).softmax(-1) @ y


CASES: dict[str, Callable[[Any, Any], Any]] = {
    "vmap": lambda model, y: vmap(lambda row: (row.softmax(0) * 2).cumsum(0))(y),
    "vmap over columns": lambda model, y: vmap(lambda column: column.square().sum(), 1)(y),
    "vmap of a product": lambda model, y: vmap(torch.mv, (None, 0))(model.layer.weight, y),
    "masks by vmap": masked,
    "grad": lambda model, y: grad(lambda v: v.pow(3).sum())(y),
    "grad_and_value": lambda model, y: (lambda made: made[0] * made[1])(grad_and_value(lambda v: v.sin().sum())(y)),
    "vjp": lambda model, y: vjp(torch.tanh, y)[1](y.cos())[0],
    "jvp": lambda model, y: jvp(torch.tanh, (y,), (y.cos(),))[1],
    "jacrev": lambda model, y: jacrev(lambda v: v.sin().sum(0))(y),
    "jacfwd": lambda model, y: jacfwd(lambda v: v.sin().sum(0))(y),
    "hessian": lambda model, y: hessian(lambda v: v.pow(3).sum())(y[0]),
    "vmap of grad": lambda model, y: vmap(grad(lambda row: row.pow(3).prod()))(y),
    "per-sample gradients": per_sample_gradients,
    "grad under no_grad": detached_outside,
    "no_grad under grad": no_grad_inside,
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", CASES)
def test_a_transformation_equals_eager_torch(name: str, mode: str, tmp_path: Path) -> None:
    x = samba.from_torch_tensor(torch.randn(3, 4), name="x")
    compare_step(Transforms(CASES[name]), (x,), tmp_path, optim_level=mode)
