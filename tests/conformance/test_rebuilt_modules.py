"""What torch's own functions make of a converted model: they train as in eager torch, or are refused by a sentence.

Numbers under the f32 switch equal torch's to 1e-5: the same operators in the same dtype.
"""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import fusion, parametrizations, prune

from rdukit.errors import InvalidArgument, RdukitError, UnsupportedOperator
from sambaflow import samba
from sambaflow.samba import utils
from support import shows
from support.loops import SGD, batch, eager_step, named

pytestmark = shows("pytorch", "training-loops-model")


class Net(nn.Module):
    """(x [8, 6], y [8, 2]) → loss []."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm, self.b = nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 2)
        self.register_buffer("scale", torch.ones(5))

    def forward(self, x: Any, y: Any) -> Any:
        return nn.functional.mse_loss(self.b(torch.tanh(self.norm(self.a(x))) * self.scale), y)


def prune_and_keep(model: Any) -> None:
    prune.l1_unstructured(model.a, "weight", amount=0.4)
    prune.remove(model.a, "weight")


def prune_globally(model: Any) -> None:
    parts = [(model.a, "weight"), (model.b, "weight")]
    prune.global_unstructured(parts, pruning_method=prune.L1Unstructured, amount=0.3)


def drop_spectral_norm(model: Any) -> None:
    nn.utils.spectral_norm(model.a)
    nn.utils.remove_spectral_norm(model.a)


def fuse(model: Any) -> None:
    model.eval()
    model.a, model.norm = fusion.fuse_linear_bn_eval(model.a, model.norm), nn.Identity()
    model.train()


def swap(model: Any) -> None:
    torch.utils.swap_tensors(model.a.weight, nn.Parameter(torch.full((5, 6), 0.2)))


#: What a program does to a converted model.
CALLS: dict[str, Callable[[Any], Any]] = {
    "pruned": lambda m: prune.ln_structured(m.a, "weight", amount=0.4, n=2, dim=0),
    "pruned everywhere": prune_globally,
    "pruned for good": prune_and_keep,
    "spectral norm": lambda m: nn.utils.spectral_norm(m.a),
    "spectral norm, removed": drop_spectral_norm,
    "weight norm": lambda m: nn.utils.weight_norm(m.a),
    "fused": fuse,
    "a computed buffer": lambda m: setattr(m, "scale", m.a.bias.abs().detach()),
    "a computed parameter": lambda m: setattr(m.a, "bias", nn.Parameter(m.a.weight.sum(1))),
    "a registered buffer": lambda m: m.register_buffer("scale", torch.full((5,), 2.0)),
    "a registered parameter": lambda m: m.a.register_parameter("bias", nn.Parameter(torch.full((5,), 0.3))),
    "swapped": swap,
    "compiled": torch.compile,
    "parallel": nn.DataParallel,
    "copied": copy.deepcopy,
    "quantized": lambda m: torch.ao.quantization.quantize_dynamic(m, {nn.Linear}, dtype=torch.qint8),
    "a parametrization": lambda m: parametrizations.weight_norm(m.a),
}
#: Those that are refused between conversion and compile, and how.
REFUSED: dict[str, tuple[type[RdukitError], str]] = {
    "quantized": (UnsupportedOperator, "compile the original model"),
    "a parametrization": (InvalidArgument, r"before samba\.from_torch_model_"),
}


def changed(kind: str, model: Any) -> Any:
    utils.set_seed(1)
    made = CALLS[kind](model)
    return made if kind in {"compiled", "parallel", "copied", "quantized"} else model


def train(model: Any, gold: Any, folder: Path) -> None:
    """Train two steps on the device and in eager torch, and compare."""
    optimizer, theirs = samba.optim.SGD(model.parameters(), **SGD), torch.optim.SGD(gold.parameters(), **SGD)
    config = {"output_folder": str(folder), "log_level": "error", "precision": "f32", "optim_level": "o0"}
    pef = samba.session.compile(model, named(batch(0)), optimizer, config_dict=config)
    outputs = utils.trace_graph(model, named(batch(0)), optimizer, pef=pef)
    for number in range(2):
        (loss,) = samba.session.run(named(batch(number)), outputs)
        torch.testing.assert_close(loss.torch_tensor(), eager_step(gold, theirs, number), rtol=1e-5, atol=1e-6)
    ours, expected = model.state_dict(), gold.state_dict()
    assert list(ours) == list(expected)
    for name, value in expected.items():
        torch.testing.assert_close(samba.to_torch(ours[name]), value, rtol=1e-5, atol=1e-6, msg=name)


@pytest.mark.filterwarnings("ignore:.*deprecated")
@pytest.mark.parametrize(
    "kind", [n if n in {"pruned", "fused", "quantized"} else pytest.param(n, marks=pytest.mark.long) for n in CALLS]
)
def test_a_model_that_is_rebuilt_after_conversion_trains_as_in_torch_or_is_refused(tmp_path: Path, kind: str) -> None:
    utils.set_seed(5)
    net = Net()
    gold = changed(kind, copy.deepcopy(net))
    samba.from_torch_model_(net)
    if (refusal := REFUSED.get(kind)) is not None:
        with pytest.raises(refusal[0], match=refusal[1]):
            train(changed(kind, net), gold, tmp_path)
        return
    train(changed(kind, net), gold, tmp_path)
