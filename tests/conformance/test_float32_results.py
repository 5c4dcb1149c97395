"""Losses, sums, positions and whatever the program calls float32 leave a bf16 device in f32."""

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

pytestmark = shows("precision", "o0", "o3")

ROWS, CLASSES, LENGTH = 6, 50, 700
#: f32 sums of a few hundred numbers, in another order than torch's
F32 = 1e-5


class Program(nn.Module):
    """``function(x)``; numbers that bf16 has not are made in forward only."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x)


class Rotary(nn.Module):
    """Angles [T, D/2] of positions, with frequencies in a buffer as models have them."""

    def __init__(self, convert: Callable[[Any, int], torch.Tensor]) -> None:
        super().__init__()
        self.convert = convert
        self.register_buffer("inv_freq", 10000.0 ** -(torch.arange(0, 16, 2) / 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        angles = self.convert(self, x.shape[-1])
        return torch.cat([angles.cos(), angles.sin()], -1)


def on_device(model: nn.Module, x: torch.Tensor, folder: Path, mode: str) -> torch.Tensor:
    loaded = load_model(model, samba.from_torch_tensor(x, name="x"), folder, optim_level=mode)
    (made,) = loaded.run()
    return samba.to_torch(made)


def bf16_numbers(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)).bfloat16().float()


LABELS = torch.arange(ROWS) * 7
LOSSES: dict[str, Callable[[Any], Any]] = {
    "cross-entropy": lambda x: F.cross_entropy(x, LABELS),
    "cross-entropy-each": lambda x: F.cross_entropy(x, LABELS, reduction="none"),
    "squares-each": lambda x: F.mse_loss(x, torch.full_like(x, 0.25), reduction="none"),
    "weighted": lambda x: 0.3 * F.cross_entropy(x, LABELS) + 0.7 * F.smooth_l1_loss(x, torch.zeros(ROWS, CLASSES)),
    "with-logits": lambda x: F.binary_cross_entropy_with_logits(x, torch.ones(ROWS, CLASSES)),
    "divergence": lambda x: F.kl_div(x, torch.ones(ROWS, CLASSES) / 64, reduction="batchmean"),
    "margin": lambda x: F.multi_margin_loss(x, LABELS),
    "by-hand": lambda x: -F.log_softmax(x, -1).gather(1, LABELS[:, None]).mean(),
    "sum-by-hand": lambda x: x.abs().sum(1).mean() / 3,
}  # fmt: skip


@pytest.mark.parametrize("case", LOSSES)
@pytest.mark.parametrize("mode", ["o0", "o3"])
def test_a_loss_is_that_of_f32(case: str, mode: str, tmp_path: Path) -> None:
    x = bf16_numbers(ROWS, CLASSES)
    made = on_device(Program(LOSSES[case]), x, tmp_path, mode)
    torch.testing.assert_close(made, LOSSES[case](x), rtol=F32, atol=F32)


POSITIONS: dict[str, Callable[[Any], Any]] = {
    "named-dtype": lambda x: torch.arange(LENGTH, dtype=torch.float32),
    "converted": lambda x: torch.arange(LENGTH).float(),
    "of-floats": lambda x: torch.arange(0.0, LENGTH) / 7,
    "spaced": lambda x: torch.linspace(0, 1, LENGTH),
    "running-sum": lambda x: x.cumsum(1),
    "running-sum-of-a-mask": lambda x: (x > 0).float().cumsum(1) * 3 - 1,
    "lengths": lambda x: (x > 0).float().sum(1).long() - 1,
    "counted-in-f32": lambda x: torch.zeros(2, dtype=torch.float32) + 256 * x[:, 0] + x[:, 0],
    "whole-numbers": lambda x: x.float().mul(513).long(),
}  # fmt: skip


@pytest.mark.parametrize("case", POSITIONS)
@pytest.mark.parametrize("mode", ["o0", "o3"])
def test_positions_are_exact(case: str, mode: str, tmp_path: Path) -> None:
    x = torch.ones(2, LENGTH)
    made = on_device(Program(POSITIONS[case]), x, tmp_path, mode)
    torch.testing.assert_close(made, POSITIONS[case](x), rtol=F32, atol=0)


ANGLES: dict[str, Callable[[Any, int], torch.Tensor]] = {
    "like-the-buffer": lambda m, n: torch.outer(torch.arange(n).type_as(m.inv_freq), m.inv_freq),
    "named-dtype": lambda m, n: torch.einsum("i,j->ij", torch.arange(n, dtype=torch.float32), m.inv_freq),
    "buffer's-dtype": lambda m, n: torch.outer(torch.arange(n, dtype=m.inv_freq.dtype), m.inv_freq),
    "as-transformers-do": lambda m, n: (
        m.inv_freq[None, :, None].float().expand(1, -1, 1) @ torch.arange(n)[None, None, :].float()
    )[0].transpose(0, 1),
}  # fmt: skip


@pytest.mark.parametrize("case", ANGLES)
def test_rotary_angles_are_those_of_f32(case: str, tmp_path: Path) -> None:
    x = torch.ones(1, LENGTH)
    expected = Rotary(ANGLES[case])(x)
    made = on_device(Rotary(ANGLES[case]), x, tmp_path, "o3")
    torch.testing.assert_close(made, expected, rtol=1e-4, atol=1e-4)  # f32 angles of up to 700


class Regression(nn.Module):
    """Squared distance of a linear layer from targets that bf16 does not have."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 1, bias=False)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.mse_loss(self.linear(x), y)


@pytest.mark.parametrize("mode", ["o0", "o1", "o3"])
def test_targets_and_incoming_gradients_are_not_rounded(mode: str, tmp_path: Path) -> None:
    model = Regression()
    model.linear.weight.data.fill_(0.5)
    x, y = torch.ones(3, 4), torch.tensor([[2.001], [1.003], [2.0007]])
    inputs = (samba.from_torch_tensor(x, name="x"), samba.from_torch_tensor(y, name="y"))
    loaded = load_model(model, inputs, tmp_path, lambda p: samba.optim.SGD(p, lr=0.0), optim_level=mode)
    (loss,) = loaded.outputs
    loss.sn_grad = torch.tensor(1.003)
    (made,) = loaded.run()
    assert samba.to_torch(made).item() == pytest.approx((2 - y).square().mean().item(), rel=1e-6)
    expected = (2 * (2 - y) / 3).sum().item() * 1.003
    # three gradients of single rows are rounded to bf16, and their sum
    assert model.linear.weight.sn_grad[0, 0].item() == pytest.approx(expected, rel=2**-7)


def test_a_parameter_that_forward_reads_in_f32_is_not_rounded(tmp_path: Path) -> None:
    class Decay(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rate = nn.Parameter(torch.tensor([1.0009765625, -3.003]))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.exp(self.rate.float()) * x.float()

    model = Decay()
    expected = torch.exp(model.rate.detach())
    torch.testing.assert_close(on_device(model, torch.ones(2), tmp_path, "o3"), expected, rtol=1e-6, atol=0)
