"""Sums over thousands of rows in bf16: gradients add up in f32, since a bf16 sum stops growing at 256 equal parts."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from sambaflow import samba
from support import shows
from support.programs import load_model

pytestmark = shows("precision")

ROWS = 2048


class Over(nn.Module):
    """``function(module, x)``, a scalar."""

    def __init__(self, module: nn.Module, function: Callable[[Any, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.module = module
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(self.module, x)


def numbers(*shape: int) -> torch.Tensor:
    """Positive, so that sums grow."""
    return (torch.rand(*shape) + 0.5).bfloat16().float()


CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[Any, torch.Tensor], torch.Tensor], Any]] = {
    "embedding": (lambda: nn.Embedding(5, 8, padding_idx=0), lambda m, x: m(x).pow(2).mean(),
                  lambda: torch.randint(3, (ROWS,))),
    "bag-sum": (lambda: nn.EmbeddingBag(5, 8, mode="sum"), lambda m, x: m(x).pow(2).mean(),
                lambda: torch.randint(3, (ROWS // 8, 8))),
    "bag-mean": (lambda: nn.EmbeddingBag(5, 8, mode="mean", padding_idx=0),
                 lambda m, x: m(x).pow(2).mean(), lambda: torch.randint(3, (ROWS // 8, 8))),
    "bag-max": (lambda: nn.EmbeddingBag(5, 8, mode="max"), lambda m, x: m(x).pow(2).mean(),
                lambda: torch.randint(3, (ROWS // 2, 2))),
    "index": (lambda: nn.Embedding(5, 8), lambda m, x: m.weight[x].pow(2).mean(), lambda: torch.randint(3, (ROWS,))),
    "index-select": (lambda: nn.Embedding(5, 8), lambda m, x: m.weight.index_select(0, x).pow(2).mean(),
                     lambda: torch.randint(3, (ROWS,))),
    "layer-norm": (lambda: nn.LayerNorm(8), lambda m, x: (m(x) + 2).pow(2).mean(), lambda: numbers(ROWS, 8)),
    "rms-norm": (lambda: nn.RMSNorm(8), lambda m, x: m(x).pow(2).mean(), lambda: numbers(ROWS, 8)),
    "group-norm": (lambda: nn.GroupNorm(1, 2), lambda m, x: (m(x) + 2).pow(2).mean(), lambda: numbers(ROWS, 2, 4)),
    "linear": (lambda: nn.Linear(8, 8), lambda m, x: (m(x) + 2).sum() / ROWS, lambda: numbers(ROWS, 8)),
    "conv2d": (lambda: nn.Conv2d(3, 4, 3, padding=1), lambda m, x: (m(x) + 2).pow(2).mean(),
               lambda: numbers(16, 3, 12, 12)),
    "conv1d": (lambda: nn.Conv1d(2, 4, 3, stride=2), lambda m, x: (m(x) + 2).pow(2).mean(),
               lambda: numbers(32, 2, 64)),
    "conv-transpose2d": (lambda: nn.ConvTranspose2d(3, 4, 2, stride=2), lambda m, x: (m(x) + 2).pow(2).mean(),
                         lambda: numbers(16, 3, 8, 8)),
    "cross-entropy": (lambda: nn.Linear(8, 50), lambda m, x: F.cross_entropy(m(x), torch.zeros(ROWS).long()),
                      lambda: numbers(ROWS, 8)),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_gradients_over_many_rows_are_those_of_f32(case: str, tmp_path: Path) -> None:
    make, function, draw = CASES[case]
    net = Over(make(), function)
    for parameter in net.parameters():
        parameter.data.copy_(parameter.data.bfloat16().float())
    reference = copy.deepcopy(net)
    x = draw()
    gold = reference(x)
    gold.backward()
    loaded = load_model(net, samba.from_torch_tensor(x, name="x"), tmp_path, lambda p: samba.optim.SGD(p, lr=0.0))
    (loss,) = loaded.run()
    # bf16: a handful of operators round by 2^-9 each; errors of single rows mostly cancel in the sum
    assert samba.to_torch(loss).item() == pytest.approx(gold.item(), rel=1e-2)
    for ours, theirs in zip(net.parameters(), reference.parameters(), strict=True):
        assert theirs.grad is not None
        assert (ours.sn_grad - theirs.grad).abs().max() < 1e-2 * theirs.grad.abs().max()


class Normed(nn.Module):
    """A norm of numbers that are large beside their differences, of which bf16 has all."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.numbers = nn.Parameter(2 + torch.arange(24.0).mul(7).remainder(5).reshape(4, 2, 3) / 64)
        self.norm = norm

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed: torch.Tensor = self.norm(self.numbers)
        return normed * x


NORMS: dict[str, Callable[[], nn.Module]] = {
    "batch": lambda: nn.BatchNorm1d(2), "batch-alone": lambda: nn.BatchNorm1d(2, affine=False),
    "batch-without-statistics": lambda: nn.BatchNorm1d(2, track_running_stats=False),
    "group": lambda: nn.GroupNorm(1, 2), "instance": lambda: nn.InstanceNorm1d(2, affine=True),
    "layer": lambda: nn.LayerNorm(3),
}  # fmt: skip


@pytest.mark.parametrize("case", NORMS)
def test_a_norm_keeps_its_mean_in_f32_for_its_gradient(case: str, tmp_path: Path) -> None:
    net = Normed(NORMS[case]())
    reference = copy.deepcopy(net)
    x = samba.from_torch_tensor(torch.tensor([1.0, -2.0, 4.0]).repeat(4, 2, 1), name="x")
    reference(x.data).sum().backward()
    load_model(net, x, tmp_path, lambda p: samba.optim.SGD(p, lr=0.0), trace={"loss_indices": [0]}).run()
    ours, theirs = net.numbers.sn_grad, reference.numbers.grad
    assert theirs is not None
    # bf16: what arrives and the result are rounded by 2^-9 each. A mean in bf16 is off by a tenth of the spread.
    assert (ours - theirs).abs().max() < 2e-2 * theirs.abs().max()
