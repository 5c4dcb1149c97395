"""Random numbers that forward draws itself: stochastic depth, noise, layers that are left out at a rate of 0."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from rdukit.errors import TraceError
from sambaflow import samba
from support import shows
from support.programs import load_model

pytestmark = shows("pytorch", "o0", "o1", "o3")

SHAPE = (64, 3, 8)


class Scaled(nn.Module):
    """``function(w * x)`` with w of ones: its gradient for x of ones is the factor that was drawn."""

    def __init__(self, function: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(SHAPE))
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(self.w * x)


def drop_path(x: torch.Tensor) -> torch.Tensor:
    """timm's stochastic depth: whole samples, at a rate of 0.25."""
    kept = x.new_empty((x.shape[0], 1, 1)).bernoulli_(0.75)
    return x * kept.div_(0.75)


def stochastic_depth(x: torch.Tensor) -> torch.Tensor:
    """torchvision's."""
    noise = torch.empty((x.shape[0], 1, 1), dtype=x.dtype, device=x.device)
    noise = noise.bernoulli_(0.75)
    noise.div_(0.75)
    return x * noise


def run(function: Callable[[torch.Tensor], Any], folder: Path, mode: str = "o3") -> Any:
    x = samba.from_torch_tensor(torch.ones(SHAPE), name="x")
    return load_model(
        Scaled(function), x, folder, lambda p: samba.optim.SGD(p, lr=0.0), optim_level=mode, precision="f32"
    )


@pytest.mark.parametrize("mode", ["o0", "o1", "o3"])
@pytest.mark.parametrize("function", [drop_path, stochastic_depth])
def test_stochastic_depth_drops_whole_samples_and_their_gradients(
    function: Callable[[torch.Tensor], Any], mode: str, tmp_path: Path
) -> None:
    loaded = run(function, tmp_path, mode)
    (out,) = loaded.run()
    first = out.data.clone()
    assert torch.equal(loaded.model.w.sn_grad, first)
    assert torch.equal(first, first[:, :1, :1].expand_as(first))
    assert set(first.flatten().tolist()) <= {0.0, float(torch.tensor(1.0) / 0.75)}
    assert 0.5 < (first[:, 0, 0] != 0).float().mean() < 0.95  # 64 samples, 0.75 kept: 4.6 standard deviations
    (again,) = loaded.run()
    assert not torch.equal(again.data, first)


def test_noise_that_is_drawn_in_place_has_its_mean_and_deviation(tmp_path: Path) -> None:
    loaded = run(lambda x: x * torch.empty_like(x).normal_(3.0, 0.5), tmp_path)
    (out,) = loaded.run()
    assert torch.equal(loaded.model.w.sn_grad, out.data)
    assert abs(out.data.mean() - 3.0) < 0.1 and abs(out.data.std() - 0.5) < 0.1  # of 1536 numbers: 7 deviations


@pytest.mark.parametrize(
    ("is_left_out", "expected"),
    [
        (lambda: torch.rand([]) < 0.0, 1.0),
        (lambda: torch.rand([]) > 1, 1.0),
        (lambda: torch.rand([]) >= 0.0, 0.0),
        (lambda: torch.rand([]) <= 1.0, 0.0),
    ],
)
def test_a_layer_that_is_never_or_always_left_out_is_no_control_flow(
    is_left_out: Callable[[], torch.Tensor], expected: float, tmp_path: Path
) -> None:
    loaded = run(lambda x: x * 0 if is_left_out() else x, tmp_path)
    (out,) = loaded.run()
    assert torch.equal(out.data, torch.full(SHAPE, expected))


@pytest.mark.parametrize("is_left_out", [lambda: torch.rand([]) < 0.1, lambda: torch.rand([]) <= 0.0])
def test_a_layer_that_is_left_out_now_and_then_is_refused(
    is_left_out: Callable[[], torch.Tensor], tmp_path: Path
) -> None:
    with pytest.raises(TraceError, match="control flow"):
        run(lambda x: x * 0 if is_left_out() else x, tmp_path)


@pytest.mark.parametrize("mode", ["o0", "o3"])
def test_a_triangular_system_is_solved_and_differentiated(mode: str, tmp_path: Path) -> None:
    class Solve(nn.Module):
        """As chunked linear attention does: (I + L)⁻¹ b, with what lies below the diagonal of w."""

        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.randn(2, 5, 5) / 3)

        def forward(self, b: torch.Tensor) -> Any:
            return torch.linalg.solve_triangular(self.w.tril(-1), b, upper=False, unitriangular=True)

    net = Solve()
    gold = copy.deepcopy(net)
    b = samba.randn(2, 5, 3, name="b")
    loaded = load_model(net, b, tmp_path, lambda p: samba.optim.SGD(p, lr=0.0), optim_level=mode, precision="f32")
    (out,) = loaded.run()
    lower = gold.w.tril(-1) + torch.eye(5)
    expected = torch.linalg.inv(lower) @ b.data
    expected.sum().backward()
    assert gold.w.grad is not None
    assert torch.allclose(out.data, expected, atol=1e-5)  # f32, five steps
    assert torch.allclose(net.w.sn_grad, gold.w.grad, atol=1e-5)
