"""The usual parts of models are native, in training and inference: the kernel check refuses none of their sections.

Small sections are compared with all sets of inputs, so that a part which is here is right at NaN and infinity, too.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from rdukit.pef.file import read_pef
from rdukit.pef.units import KERNEL_CHECK
from rdukit_compiler.backend.native import has_native_form
from sambaflow import samba
from support import shows
from support.programs import compile_model
from support.tiers import others_long

pytestmark = [
    shows("native", "native-kernels", "o3"),
    pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler"),
    pytest.mark.timeout(1800),
]

ROWS, TEXTS, IMAGES = (8, 16), (2, 6, 16), (2, 8, 8, 8)


class Applied(nn.Module):
    """Layers [x → y], and a function of both and the input."""

    def __init__(self, function: Callable[..., torch.Tensor], **layers: nn.Module) -> None:
        super().__init__()
        self.function = function
        for name, layer in layers.items():
            self.add_module(name, layer)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(self, x)


def perceptron(between: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(16, 32), between, nn.Linear(32, 16))


def convolved(layer: nn.Module) -> nn.Module:
    return nn.Sequential(layer, nn.BatchNorm2d(8), nn.ReLU())


def dropped_twice(net: Any, x: torch.Tensor) -> torch.Tensor:
    return F.dropout(net.down(F.dropout(net.up(x), 0.1, net.training)), 0.1, net.training)


def attended(net: Any, x: torch.Tensor) -> torch.Tensor:
    heads = (part.view(2, 6, 2, 8).transpose(1, 2) for part in net.heads(x).chunk(3, -1))
    return F.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).reshape(x.shape)


def gated(net: Any, x: torch.Tensor) -> torch.Tensor:
    return net.down(F.silu(net.gate(x)) * net.up(x))


def rotated(net: Any, x: torch.Tensor) -> torch.Tensor:
    heads = net.heads(x).view(2, 6, 2, 8).transpose(1, 2)
    first, second = heads.chunk(2, -1)
    turned = torch.cat([heads * 0.6 + torch.cat([-second, first], -1) * 0.8, heads[..., 8:]], -1)
    return turned.transpose(1, 2).reshape(x.shape)


def encoder(**options: Any) -> nn.Module:
    return nn.TransformerEncoderLayer(16, 2, 32, **{"dropout": 0.0, **options})


Part = tuple[Callable[[], nn.Module], tuple[int, ...]]
PARTS: dict[str, Part] = {
    **{
        f"perceptron with {type(layer).__name__}": (lambda layer=layer: perceptron(layer), ROWS)
        for layer in (nn.ReLU(), nn.GELU(), nn.SiLU(), nn.ELU(), nn.ReLU6(), nn.Hardswish(), nn.Softplus(),
                      nn.Dropout(0.1), nn.Softmax(-1), nn.LayerNorm(32), nn.RMSNorm(32), nn.BatchNorm1d(32))
    },
    **{
        f"convolution {name}": (lambda layer=layer: convolved(layer), IMAGES)
        for name, layer in {
            "of points": nn.Conv2d(8, 8, 1), "3 by 3": nn.Conv2d(8, 8, 3, padding=1),
            "with steps": nn.Conv2d(8, 8, 3, 2, 1), "of channels": nn.Conv2d(8, 8, 3, padding=1, groups=8),
            "transposed": nn.ConvTranspose2d(8, 8, 3),
        }.items()
    },
    **{
        f"convolution before {type(layer).__name__}": (
            lambda layer=layer: nn.Sequential(nn.Conv2d(8, 8, 3), layer), IMAGES,
        )
        for layer in (nn.MaxPool2d(3, 2, 1), nn.AvgPool2d(2), nn.AdaptiveAvgPool2d(1), nn.AdaptiveMaxPool2d(2),
                      nn.GroupNorm(2, 8), nn.Upsample(scale_factor=2, mode="bilinear"))
    },
    "stem": (lambda: nn.Sequential(nn.Conv2d(8, 8, 7, 2, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
                                   nn.MaxPool2d(3, 2, 1)), IMAGES),
    "two dropouts": (lambda: Applied(dropped_twice, up=nn.Linear(16, 32), down=nn.Linear(32, 16)), ROWS),
    "LSTM": (lambda: Applied(lambda net, x: net.layer(x)[0], layer=nn.LSTM(16, 8)), TEXTS),
    "GRU": (lambda: Applied(lambda net, x: net.layer(x)[0], layer=nn.GRU(16, 8)), TEXTS),
    "attention": (lambda: Applied(attended, heads=nn.Linear(16, 48)), TEXTS),
    "attention layer": (
        lambda: Applied(lambda net, x: net.layer(x, x, x)[0], layer=nn.MultiheadAttention(16, 2)), TEXTS,
    ),
    "rotated heads": (lambda: Applied(rotated, heads=nn.Linear(16, 16)), TEXTS),
    "gated perceptron": (
        lambda: Applied(gated, gate=nn.Linear(16, 32), up=nn.Linear(16, 32), down=nn.Linear(32, 16)), TEXTS,
    ),
    "encoder": (encoder, TEXTS),
    "encoder, batch first": (lambda: encoder(batch_first=True), TEXTS),
    "encoder, norm first": (lambda: encoder(batch_first=True, norm_first=True, activation="gelu"), TEXTS),
    "encoder with dropout": (lambda: encoder(batch_first=True, dropout=0.1), TEXTS),
    "decoder": (
        lambda: Applied(lambda net, x: net.layer(x, x), layer=nn.TransformerDecoderLayer(16, 2, 32, 0.0)), TEXTS,
    ),
}  # fmt: skip
#: One of each kind.
SHORT = {"perceptron with GELU", "stem", "encoder with dropout"}


class Trained(nn.Module):
    """Mean square of a part's result, and the result."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part = part

    def forward(self, x: torch.Tensor) -> Any:
        made = self.part(x)
        return (made.square().mean(), made) if self.training else made


@pytest.mark.parametrize("name", others_long(list(PARTS), SHORT))
def test_sections_of_usual_parts_are_native(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RDUKIT_KERNELS", "native")
    monkeypatch.setenv("RDUKIT_KERNEL_CHECK", "full")  # all sets, on slow machines, too
    make, shape = PARTS[name]
    for is_training in (True, False):
        samba.session.reset()
        torch.manual_seed(0)
        net = Trained(make()).train(is_training)
        samba.from_torch_model_(net)
        optimizer = samba.optim.SGD(net.parameters(), lr=0.1) if is_training else None
        inputs = (samba.from_torch_tensor(torch.randn(shape), name="x"),)
        pef = read_pef(compile_model(net, inputs, optimizer, tmp_path, optim_level="o3", precision="f32"))
        verdicts = pef.pef.metadata.get(KERNEL_CHECK, {})
        assert [verdict for verdict in verdicts.values() if not verdict.startswith("right")] == []
        assert [digest for digest in pef.kernels if has_native_form(pef.kernels[digest])] == [
            digest for digest in pef.kernels if digest in pef.natives
        ]
