"""What a run returns is a value of its own: nothing that happens later changes it, and each output has its gradient."""

import copy
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from sambaflow import samba
from support import shows
from support.programs import load_model

pytestmark = shows("pytorch", "o0", "o1", "o3")

MODES = ["o0", "o1", "o3"]


class Viewed(nn.Module):
    """Returns ``view`` of a parameter [2, 3] and of the input."""

    def __init__(self, view: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(2, 3))
        self.view = view

    def forward(self, x: torch.Tensor) -> Any:
        return self.view(self.weight), self.view(x)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "view", [lambda t: t.view(3, 2), lambda t: t.unsqueeze(0)[0], lambda t: t.flatten().unflatten(0, (6, 1)).view(2, 3)]
)
def test_an_output_that_shows_a_parameter_or_an_input_keeps_its_value(mode: str, view: Any, tmp_path: Path) -> None:
    model, x = Viewed(view), samba.randn(2, 3, name="x")
    weight, first = model.weight.detach().clone(), x.data.clone()
    loaded = load_model(model, x, tmp_path, lambda p: samba.optim.SGD(p, lr=0.5), optim_level=mode, precision="f32")
    outputs = loaded.run()
    x.data.fill_(7)
    loaded.run()
    assert torch.equal(outputs[0].data, view(weight))  # the optimizer has changed the parameter since
    assert torch.equal(outputs[1].data, view(first))


@pytest.mark.parametrize("mode", MODES)
def test_a_value_that_is_returned_twice_has_a_gradient_for_each(mode: str, tmp_path: Path) -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(3))

        def forward(self, x: torch.Tensor) -> Any:
            y = self.weight * x
            return y, y, torch.broadcast_tensors(y, y)[0]

    model, x = Twice(), samba.randn(3, name="x")
    loaded = load_model(model, x, tmp_path, lambda p: samba.optim.SGD(p, lr=0.0), optim_level=mode, precision="f32")
    for factor, output in enumerate(loaded.outputs, 1):
        output.sn_grad = torch.full((3,), float(factor))
    first, second, third = loaded.run()
    assert torch.equal(first.data, second.data) and torch.equal(first.data, third.data)
    torch.testing.assert_close(model.weight.sn_grad, 6 * x.data)  # 1 + 2 + 3; f32, two additions


def test_a_scalar_output_takes_the_index_0_as_a_torch_tensor_too(tmp_path: Path) -> None:
    """On the device a loss has shape [1]."""

    class Loss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(3, 1)

        def forward(self, x: torch.Tensor) -> Any:
            made = self.lin(x)
            return made.square().mean(), made

    outputs = load_model(Loss(), samba.randn(2, 3, name="x"), tmp_path).run()
    loss, made = samba.to_torch(outputs)
    number = outputs[0].item()
    assert loss[0].item() == loss[-1].item() == loss.item() == float(loss) == number
    assert isinstance(loss, torch.Tensor) and loss.shape == () and type(made) is torch.Tensor
    assert f"{loss:.3f}" == f"{number:.3f}" and repr(loss) == repr(torch.tensor(number))
    file = io.BytesIO()
    torch.save({"loss": loss}, file)
    file.seek(0)
    plain = [loss * 2, loss.detach(), copy.deepcopy(loss), torch.load(file)["loss"], loss[0], torch.stack([loss, loss])]
    assert [type(tensor) for tensor in plain] == [torch.Tensor] * len(plain)
    with pytest.raises(IndexError):
        loss[1]
