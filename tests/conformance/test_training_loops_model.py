"""Requests that a training loop of plain PyTorch makes of its model: obeyed, or refused at the line.

Numbers under the f32 switch equal torch's to 1e-5: the same operators in the same dtype.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from rdukit.errors import InvalidArgument
from sambaflow import samba
from sambaflow.samba import utils
from support import shows
from support.programs import Loaded, load_model

pytestmark = shows("pytorch")


class Net(nn.Module):
    """(x [8, 4], y [8]) → (loss [], logits [8, 3]); ``layers`` are what stands between."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.linear, self.layers = nn.Linear(4, 3), nn.Sequential(*layers)

    def forward(self, x: Any, y: Any) -> Any:
        out = self.layers(self.linear(x))
        return functional.cross_entropy(out, y), out


def load(folder: Path, *layers: nn.Module, **config: Any) -> Loaded:
    utils.set_seed(0)
    batch = samba.randn(8, 4, name="x", batch_dim=0), samba.randint(3, (8,), name="y", batch_dim=0)
    sgd = lambda parameters: samba.optim.SGD(parameters, lr=0.5)  # noqa: E731
    return load_model(Net(*layers), batch, folder, sgd, **{"precision": "f32", **config})


def weight_of(loaded: Loaded) -> torch.Tensor:
    return samba.session.read_tensor(loaded.model.linear.weight.sn_name).clone()


@pytest.mark.parametrize("layer", [nn.Identity, nn.Dropout, lambda: nn.BatchNorm1d(3)])
def test_a_whole_run_in_evaluation_mode_without_gradients_evaluates(tmp_path: Path, layer: Any) -> None:
    loaded = load(tmp_path, layer())
    loaded.run()
    before = weight_of(loaded)
    loaded.model.eval()
    with torch.no_grad():
        made = loaded.run()[1].torch()
        assert torch.equal(weight_of(loaded), before)
        samba.session.to_cpu(loaded.model)
        host = samba.to_torch(loaded.model(*(t.torch() for t in loaded.inputs))[1])
    torch.testing.assert_close(made, host, rtol=1e-5, atol=1e-5)
    loaded.model.train()
    loaded.run()
    assert not torch.equal(weight_of(loaded), before)


def test_a_whole_step_after_eval_is_refused_where_gradients_are_enabled(tmp_path: Path) -> None:
    loaded = load(tmp_path)
    loaded.model.eval()
    with pytest.raises(InvalidArgument, match=r"evaluation mode.*inside torch\.no_grad\(\) a whole run evaluates"):
        loaded.run()


def test_a_model_that_was_traced_in_evaluation_mode_trains_in_it(tmp_path: Path) -> None:
    utils.set_seed(0)
    batch = samba.randn(8, 4, name="x"), samba.randint(3, (8,), name="y")
    loaded = load_model(Net().eval(), batch, tmp_path, lambda p: samba.optim.SGD(p, lr=0.5))
    before = weight_of(loaded)
    loaded.run()
    assert not torch.equal(weight_of(loaded), before)
