"""Sections hold no operator that overwrites a tensor, whatever torch's own formulas do inside."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from rdukit.errors import UnsupportedOperator
from rdukit.pef import read_pef
from rdukit_compiler.torch_private import find_overwriting, trace_functional
from sambaflow import samba
from support import shows
from support.programs import compare_step, load_model

pytestmark = shows("pytorch", "operators", "o0", "o1", "o3")

MODES = ["o0", "o1", "o3"]


class Calls(nn.Module):
    """``rest(x * w)`` on x of any shape, with w of x's shape."""

    def __init__(self, shape: tuple[int, ...], rest: Callable[[Any], Any]) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(shape))
        self.rest = rest

    def forward(self, x: Any) -> Any:
        return self.rest(x * self.w)


CASES: dict[str, tuple[tuple[int, ...], Callable[[Any], Any]]] = {
    "circular pad 1d": ((2, 3, 5), lambda y: F.pad(y, (2, 1), mode="circular").square()),
    "circular pad 2d": ((2, 3, 5, 4), lambda y: F.pad(y, (2, 1, 1, 2), mode="circular").square()),
    "circular pad 3d": ((1, 2, 3, 3, 4), lambda y: F.pad(y, (1, 1, 1, 1, 1, 2), mode="circular").square()),
    "as_strided": ((4, 6), lambda y: y.as_strided((3, 4), (6, 1), 2).square()),
    "overlapping as_strided": ((12,), lambda y: y.as_strided((4, 5), (2, 1)).square()),
    "as_strided of a transposed value": ((4, 6), lambda y: y.t().contiguous().as_strided((3, 4), (4, 1), 1).square()),
    "nanquantile": ((3, 7), lambda y: torch.nanquantile(y, 0.3, dim=1)),
    "quantile": ((3, 7), lambda y: torch.quantile(y, 0.3, dim=0, keepdim=True)),
    "adaptive average 1d of a transposed value": (
        (2, 5, 3), lambda y: F.adaptive_avg_pool1d(y.transpose(1, 2), 1).square()
    ),
    "adaptive average 2d of a permuted value": (
        (2, 4, 5, 3), lambda y: F.adaptive_avg_pool2d(y.permute(0, 3, 1, 2), 1).square()
    ),
    "adaptive average 2d in channels_last": (
        (2, 3, 4, 5), lambda y: F.adaptive_avg_pool2d(y.contiguous(memory_format=torch.channels_last), 1).square()
    ),
    "adaptive average 3d of a permuted value": (
        (1, 2, 3, 4, 3), lambda y: F.adaptive_avg_pool3d(y.permute(0, 4, 1, 2, 3), 1).square()
    ),
    "unfold and fold": ((1, 2, 6, 6), lambda y: F.fold(F.unfold(y, 3, padding=1), (6, 6), 3, padding=1).square()),
    "diagonal overwritten": ((4, 4), lambda y: torch.diagonal_scatter(y, y[0].square())),
    "index_add": ((5, 3), lambda y: y.index_add(0, torch.tensor([1, 1, 4]), y[:3].square())),
    "masked_scatter": ((4, 3), lambda y: y.masked_scatter(torch.eye(4, 3).bool(), y.square().reshape(-1))),
    "cummax": ((4, 6), lambda y: y.cummax(1).values.square()),
    "median": ((5, 7), lambda y: y.median(1).values.square()),
    "renorm": ((4, 6), lambda y: y.renorm(2, 0, 1.0).square()),
    "grid_sample": (
        (1, 2, 5, 5), lambda y: F.grid_sample(y, y[:, :, :2, :].permute(0, 2, 3, 1).tanh(), align_corners=False)
    ),
    "bilinear": ((4, 6), lambda y: F.bilinear(y[:, :3], y[:, 3:], torch.ones(2, 3, 3)).square()),
    "max_unpool": (
        (1, 2, 4, 4), lambda y: F.max_unpool2d(*F.max_pool2d(y, 2, return_indices=True), 2).square()
    ),
}  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", CASES)
def test_training_equals_eager_torch(name: str, mode: str, tmp_path: Path) -> None:
    shape, rest = CASES[name]
    x = samba.from_torch_tensor(torch.randn(shape), name="x")
    loaded = compare_step(Calls(shape, rest), (x,), tmp_path, optim_level=mode)
    for kernel in read_pef(loaded.pef).kernels.values():
        assert not [node.op for node in kernel.nodes if node.op.split(".")[1:2] and node.op.split(".")[1].endswith("_")]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_a_convolution_with_circular_padding_trains(dims: int, mode: str, tmp_path: Path) -> None:
    kind = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dims - 1]
    model = nn.Sequential(kind(2, 3, 3, padding=1, padding_mode="circular"), nn.Tanh())
    x = samba.from_torch_tensor(torch.randn(2, 2, *(5, 4, 3)[:dims]), name="input")
    compare_step(model, (x,), tmp_path, optim_level=mode)


@pytest.mark.parametrize("name", ["rfft", "irfft", "fft2", "stft"])
def test_fourier_transforms_on_the_host_train(name: str, tmp_path: Path) -> None:
    window = torch.hann_window(8)
    calls: dict[str, Callable[[Any], Any]] = {
        "rfft": lambda y: torch.view_as_real(torch.fft.rfft(y)).square(),
        "irfft": lambda y: torch.fft.irfft(torch.fft.rfft(y) * 2, n=16).square(),
        "fft2": lambda y: torch.fft.fft2(y).abs(),
        "stft": lambda y: torch.stft(y, 8, window=window, return_complex=True).abs().square(),
    }
    x = samba.from_torch_tensor(torch.randn(3, 16), name="x")
    compare_step(Calls((3, 16), calls[name]), (x,), tmp_path, host_fallback=True)


def test_a_record_of_a_section_overwrites_nothing() -> None:
    def function(x: torch.Tensor) -> list[torch.Tensor]:
        y = x.clone()
        y[0].mul_(2)
        y.t()[1] = 3.0
        return [y, torch.ones(3).add_(x.sum())]

    traced = trace_functional(function, [torch.empty(4, 3)])
    assert find_overwriting(traced.graph) is None
    x = torch.randn(4, 3)
    for made, expected in zip(traced(x), function(x), strict=True):
        torch.testing.assert_close(made, expected)


@pytest.mark.parametrize("mode", ["o0", "o1", "o3"])
@pytest.mark.parametrize("precision", ["f32", "bf16"])
@pytest.mark.parametrize("function", [F.hardswish, F.softplus, F.smooth_l1_loss])
def test_a_gradient_of_a_permuted_parameter_updates_the_elements_that_it_belongs_to(
    function: Any, precision: str, mode: str, tmp_path: Path
) -> None:
    """What torch says of such gradients' strides without running the operator is not what it then gives."""

    class Permuted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.arange(24.0).view(2, 3, 4) / 8 - 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            turned = self.weight.permute(2, 0, 1)
            made: torch.Tensor = (
                function(turned, x, reduction="none") if "loss" in function.__name__ else function(turned)
            )
            return made * x

    model, x = Permuted(), samba.randn(4, 2, 3, name="x").bfloat16().float()
    before = model.weight.detach().clone()
    loaded = load_model(model, x, tmp_path, lambda p: samba.optim.SGD(p, lr=0.5), optim_level=mode, precision=precision)
    loaded.outputs[0].sn_grad = torch.ones(4, 2, 3)
    loaded.run()
    gradient = model.weight.sn_grad
    samba.session.to_cpu(model)
    # One multiplication and one addition, f32: only an element of another place is further off.
    torch.testing.assert_close(model.weight.detach(), before - 0.5 * gradient, rtol=1e-6, atol=1e-6)


def scatter_in_memory(y: Any) -> Any:
    return torch.as_strided_scatter(y.sin(), y[:2, :3].square(), (2, 3), (6, 1), 1)


@pytest.mark.parametrize("mode", MODES)
def test_as_strided_scatter_infers_and_does_not_train(mode: str, tmp_path: Path) -> None:
    # Torch's gradient of it depends on the incoming gradient's memory: no sum of derivatives of what it computes.
    values = torch.randn(4, 6)
    x, model = samba.from_torch_tensor(values, name="x"), Calls((4, 6), scatter_in_memory)
    expected = model(values).detach()
    (made,) = load_model(model, (x,), tmp_path, optim_level=mode, precision="f32").run()
    torch.testing.assert_close(samba.to_torch(made), expected)
    with pytest.raises(UnsupportedOperator, match="torch's gradient of as_strided_scatter depends on its layout"):
        load_model(model, (x,), tmp_path, lambda p: samba.optim.SGD(p, lr=0.1), optim_level=mode)
