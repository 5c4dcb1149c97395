"""A small network that trains on the device and in eager torch, step by step."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from sambaflow import samba
from sambaflow.samba import utils
from support.programs import Loaded, compile_model

STEPS = 6
ADAM = {"lr": 0.01, "betas": (0.9, 0.99), "weight_decay": 0.1}
SGD = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}


class Net(nn.Module):
    """(x [8, 6], y [8, 2]) → loss []."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 5), nn.Linear(5, 2)

    def forward(self, x: Any, y: Any) -> Any:
        return nn.functional.mse_loss(self.b(torch.tanh(self.a(x))), y)


def batch(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    drawn = torch.Generator().manual_seed(number)
    return torch.randn(8, 6, generator=drawn), torch.randn(8, 2, generator=drawn)


def named(tensors: tuple[torch.Tensor, torch.Tensor]) -> list[samba.SambaTensor]:
    return [samba.from_torch_tensor(t, name=name) for t, name in zip(tensors, ("x", "y"), strict=True)]


def load(
    folder: Path, make: Callable[[nn.Module], Any], traced: Callable[[nn.Module], Any] | None = None, **config: Any
) -> tuple[Loaded, Net]:
    """Return the network on the device, and the same for eager torch; ``traced`` makes the optimizer of the run."""
    utils.set_seed(5)
    net = Net()
    gold = copy.deepcopy(net)
    samba.from_torch_model_(net)
    optimizer = make(net)
    pef = compile_model(net, named(batch(0)), optimizer, folder, precision="f32", optim_level="o0", **config)
    if traced is not None:
        optimizer = traced(net)
    outputs = utils.trace_graph(net, named(batch(0)), optimizer, pef=pef)
    return Loaded(net, named(batch(0)), optimizer, pef, outputs), gold


def step(loaded: Loaded, number: int, **arguments: Any) -> torch.Tensor:
    (loss,) = samba.session.run(named(batch(number)), loaded.outputs, **arguments)
    made: torch.Tensor = loss.torch_tensor()
    return made


def eager_step(gold: Net, optimizer: torch.optim.Optimizer, number: int) -> torch.Tensor:
    optimizer.zero_grad()
    loss = gold(*batch(number))
    loss.backward()
    optimizer.step()
    made: torch.Tensor = loss.detach()
    return made


def assert_equal(loaded: Loaded, gold: Net) -> None:
    samba.session.to_cpu(loaded.model)
    for (name, ours), theirs in zip(loaded.model.named_parameters(), gold.parameters(), strict=True):
        torch.testing.assert_close(ours.torch_tensor(), theirs.detach(), rtol=1e-5, atol=1e-6, msg=name)


def train_both(
    loaded: Loaded, gold: Net, theirs: torch.optim.Optimizer, after: Callable[[Any, int, Any], None]
) -> None:  # fmt: skip
    """Train on the device and in eager torch; ``after(optimizer, step, loss)`` is what the loop does after each."""
    ours = loaded.optimizer
    for number in range(STEPS):
        mine, golden = step(loaded, number), eager_step(gold, theirs, number)
        torch.testing.assert_close(mine, golden, rtol=1e-5, atol=1e-6)
        after(ours, number, mine)
        after(theirs, number, golden)
    assert_equal(loaded, gold)
