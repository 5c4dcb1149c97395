"""What forward asks about the kinds of its values: a trace answers as eager torch does."""

import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from rdukit.errors import TraceError
from sambaflow import samba
from sambaflow.samba.sambatensor import SambaTensor
from support import shows
from support.programs import compare_step, compile_model

pytestmark = shows("pytorch")


@functools.singledispatch
def scale_of(value: object) -> float:
    return 3.0


@scale_of.register
def _(value: torch.Tensor) -> float:
    return 2.0


def by_isinstance(value: object) -> float:
    return 2.0 if isinstance(value, torch.Tensor) else 3.0


def by_is_tensor(value: object) -> float:
    return 2.0 if torch.is_tensor(value) else 3.0


def by_dtype(value: object) -> float:
    return 2.0 if isinstance(value, torch.FloatTensor) else 3.0


def by_match(value: object) -> float:
    match value:
        case torch.Tensor():
            return 2.0
        case _:
            return 3.0


class Asks(nn.Module):
    """Scales by what ``ask`` says of the input, of values made of it, of a parameter and of a Python number."""

    def __init__(self, ask: Any) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.ask = ask

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x)
        scale = self.ask(x) * self.ask(y) * self.ask(y.sum() + x[0].detach().sum()) * self.ask(self.linear.bias)
        return y * scale * self.ask(1.5)


@pytest.mark.parametrize("ask", [by_isinstance, by_is_tensor, by_dtype, by_match, scale_of])
def test_values_of_forward_are_torch_tensors(ask: Any, tmp_path: Path) -> None:
    compare_step(Asks(ask), (samba.randn(4, 6, name="x", batch_dim=0),), tmp_path)


class AsksForParameters(Asks):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x)
        parts = [self.linear.weight, self.linear.bias, self.linear.bias * 1, y, x]
        return y * sum(2**i for i, part in enumerate(parts) if isinstance(part, nn.Parameter))


def test_parameters_are_parameters_and_what_is_made_of_them_is_not(tmp_path: Path) -> None:
    compare_step(AsksForParameters(None), (samba.randn(4, 6, name="x", batch_dim=0),), tmp_path)


class AsksForSambaTensors(Asks):
    def forward(self, x: Any) -> torch.Tensor:
        y = self.linear(x)
        if isinstance(x, SambaTensor) and isinstance(y, SambaTensor):
            self.seen = (x.sn_name, x.batch_dim, x.named_dims, x.has_data, y.has_name)
            x.batch_dim = 0
            y = samba.sigmoid(y.torch_tensor()) + samba.to_torch(x)
        return y


def test_they_are_samba_tensors_too_while_traced(tmp_path: Path) -> None:
    model = AsksForSambaTensors(None)
    x = samba.randn(4, 6, name="x", batch_dim=0, named_dims=("B", "F"))
    compile_model(model, (x,), None, tmp_path)
    assert model.seen == ("x", 0, ("B", "F"), True, False)
    plain = torch.zeros(3).requires_grad_()
    assert not isinstance(plain, SambaTensor)
    assert not hasattr(plain, "sn_name")


class MixesDtypes(Asks):
    def forward(self, x: torch.Tensor) -> Any:
        rows = nn.functional.embedding((x > 0).to(torch.int16), self.linear.weight)
        return self.linear.weight @ x.bfloat16().t(), rows.sum()


def test_mixed_floats_and_narrow_indices_are_taken_as_on_the_host(tmp_path: Path) -> None:
    compile_model(MixesDtypes(None), (samba.randn(4, 6, name="x", batch_dim=0),), None, tmp_path)


class GivesOtherData(Asks):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x)
        y.data = y.data * 2
        return y


def test_giving_a_value_other_data_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"forward assigns \.data"):
        compile_model(GivesOtherData(None), (samba.randn(4, 6, name="x", batch_dim=0),), None, tmp_path)
