"""Overloads of torch's operators that take a number where others take a tensor, and rare ones: as in eager torch."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from rdukit.errors import UnsupportedOperator
from sambaflow import samba
from support import shows
from support.programs import compile_model, load_model

pytestmark = shows("operators")

WHOLE = torch.tensor([2, 3, 5, 7])
REAL = torch.tensor([[0.5, 1.5], [2.5, 0.25]])
PLACES = torch.tensor([[0, 1], [1, 0]])

#: Name → input and call.
CALLS: dict[str, tuple[torch.Tensor, Callable[[Any], Any]]] = {
    "number % tensor": (WHOLE, lambda x: 17 % x),
    "number % floats": (REAL, lambda x: 7.5 % x),
    "number << tensor": (WHOLE, lambda x: 1 << x),
    "number >> tensor": (WHOLE, lambda x: 64 >> x),
    "bitwise with a number first": (WHOLE, lambda x: torch.bitwise_and(7, x) + torch.bitwise_or(8, x)),
    "clamp_max": (REAL, lambda x: x.clamp_max(1)),
    "clamp_max_": (REAL, lambda x: x.clone().clamp_max_(1)),
    "scatter that multiplies": (REAL, lambda x: x.scatter(0, PLACES, 3.0, reduce="multiply")),
    "scatter_ that adds": (REAL, lambda x: x.clone().scatter_(0, PLACES, x, reduce="add")),
    "randperm": (REAL, lambda x: torch.randperm(5).sort()[0] + x.sum()),
    "random_ between": (REAL, lambda x: x.clone().random_(1, 2)),
    "isin": (WHOLE, lambda x: torch.isin(x, 3) | torch.isin(3, x)),
    "xlogy": (REAL, lambda x: torch.xlogy(x, 2.0) + torch.xlogy(2.0, x)),
    "windows": (REAL, lambda x: torch.hamming_window(2) * torch.kaiser_window(2) * torch.bartlett_window(2) + x),
    "polynomial": (REAL, lambda x: torch.special.chebyshev_polynomial_t(x, 2)),
    "frequencies": (REAL, lambda x: torch.fft.fftfreq(2) * x),
    "bits of floats": (REAL, lambda x: x.view(torch.int32)),
    "copies of views": (REAL, lambda x: torch.slice_copy(x, 0, 0, 1) + torch.select_copy(x, 0, 0)),
    "fake quantization": (REAL, lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 0, 0, 255)),
    "conv_tbc": (torch.ones(4, 2, 3), lambda x: torch.conv_tbc(x, torch.ones(2, 3, 5), torch.ones(5))),
}


class Called(nn.Module):
    """(x) → what ``function`` makes of it."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Any) -> Any:
        return self.function(x)


@pytest.mark.parametrize("name", CALLS)
def test_an_overload_computes_what_torch_does(tmp_path: Path, name: str) -> None:
    x, function = CALLS[name]
    loaded = load_model(Called(function), (samba.from_torch_tensor(x.clone(), name="x"),), tmp_path, precision="f32")
    torch.testing.assert_close(loaded.run()[0].torch(), function(x.clone()), rtol=1e-5, atol=1e-5)


class Scaled(nn.Module):
    """(x [2, 2]) → loss, by way of the overloads that are differentiable."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(REAL.clone())

    def forward(self, x: Any) -> Any:
        made = self.weight * x
        made = torch.xlogy(made, 2.0) + made.clamp_max(1) + torch.fake_quantize_per_tensor_affine(
            made, 0.1, 0, 0, 255
        )  # fmt: skip
        return functional.mse_loss(made, x)


def test_gradients_of_the_overloads_equal_torchs(tmp_path: Path) -> None:
    model, reference = Scaled(), Scaled()
    inputs = (samba.from_torch_tensor(REAL.clone(), name="x"),)
    loaded = load_model(model, inputs, tmp_path, partial(samba.optim.SGD, lr=0.0), precision="f32")
    loaded.run()
    reference(REAL).backward()
    torch.testing.assert_close(model.weight.sn_grad, reference.weight.grad, rtol=1e-5, atol=1e-5)


def test_an_operator_that_no_pef_may_hold_is_refused_at_compile_by_its_name(tmp_path: Path) -> None:
    inputs = (samba.from_torch_tensor(REAL.clone(), name="x"),)
    with pytest.raises(UnsupportedOperator, match=r"'_?foreach_add' in module .*use other torch operators"):
        compile_model(Called(lambda x: torch._foreach_add([x, x], 1)[0]), inputs, None, tmp_path)
