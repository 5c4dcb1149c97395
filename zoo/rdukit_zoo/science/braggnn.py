"""BraggNN: convolutions, non-local attention and linear layers give the centre of a diffraction peak in a small patch.

Source: Liu et al., BraggNN: fast X-ray Bragg peak analysis using deep learning, IUCrJ (2022), arXiv 2008.08198.

Axes: B batch, S side of a patch, Q pixels after the first convolution, C channels.
"""

import itertools
from typing import Any, Final

import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import nn

import sambaflow.samba as samba
from rdukit.errors import InvalidArgument
from rdukit_zoo.datasets.peaks import make_peaks
from rdukit_zoo.registry import SizeValue, Variant, model

SLOPE: Final = 0.01
#: Widths of the linear layers: published as the smallest, and the default of the authors' program.
SMALL, WIDE = (16, 8, 4, 2), (64, 32, 16, 8)


class NonLocalBlock(nn.Module):
    """Attention of all pixels to all, without scale, with a residual connection: [B, C, S, S] → same."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.theta_layer, self.phi_layer, self.g_layer = (nn.Conv2d(channels, channels // 2, 1) for _ in range(3))
        self.out_cnn = nn.Conv2d(channels // 2, channels, 1)

    def forward(self, x_BCSS: torch.Tensor) -> torch.Tensor:
        theta_BCQ, phi_BCQ, g_BCQ = (
            layer(x_BCSS).flatten(2) for layer in (self.theta_layer, self.phi_layer, self.g_layer)
        )
        weight_BQQ = F.softmax(theta_BCQ.transpose(1, 2) @ phi_BCQ, dim=-1)
        mixed_BCQ = (weight_BQQ @ g_BCQ.transpose(1, 2)).transpose(1, 2)
        batch, _, height, width = x_BCSS.shape
        made: torch.Tensor = x_BCSS + self.out_cnn(mixed_BCQ.reshape(batch, -1, height, width))
        return made


class BraggNN(nn.Module):
    """(patch [B, 1, S, S], centre [B, 2]) → (mean squared error [], centre [B, 2]); the patch alone → the centre.

    Centres are row and column as shares of S.
    """

    def __init__(self, patch_size: int = 11, is_wide: bool = False) -> None:
        super().__init__()
        if patch_size < 7:
            raise InvalidArgument(
                f"patch_size is {patch_size}; expected 7 or more, because three convolutions remove six pixels"
            )
        self.cnn_1, self.nlb = nn.Conv2d(1, 64, 3), NonLocalBlock(64)
        self.cnn_2, self.cnn_3 = nn.Conv2d(64, 32, 3), nn.Conv2d(32, 8, 3)
        widths = (8 * (patch_size - 6) ** 2, *(WIDE if is_wide else SMALL))
        self.dense = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(widths))
        self.centre = nn.Linear(widths[-1], 2)

    def forward(
        self, patch: torch.Tensor, centre: torch.Tensor | None = None
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        x = F.leaky_relu(self.nlb(self.cnn_1(patch)), SLOPE)
        x = F.leaky_relu(self.cnn_3(F.leaky_relu(self.cnn_2(x), SLOPE)), SLOPE).flatten(1)
        for layer in self.dense:
            x = F.leaky_relu(layer(x), SLOPE)
        found: torch.Tensor = self.centre(x)
        return found if centre is None else (F.mse_loss(found, centre), found)


def make_inputs(batch_size: int, patch_size: int = 11, is_wide: bool = False) -> tuple[samba.SambaTensor, ...]:
    """Return dummy inputs: ``patch`` [batch, 1, S, S] and ``centre`` [batch, 2]."""
    patch = samba.rand(batch_size, 1, patch_size, patch_size, name="patch", batch_dim=0)
    return patch, samba.rand(batch_size, 2, name="centre", batch_dim=0)


def generate(count: int, seed: int, **sizes: SizeValue) -> dict[str, NDArray[Any]]:
    """Draw peaks; see ``make_peaks``."""
    return make_peaks(count, seed, int(sizes["patch_size"]))


model(
    name="braggnn",
    title="BraggNN: centres of diffraction peaks",
    task="regression",
    modality="images",
    licence="Apache-2.0",
    source="Liu et al., BraggNN (IUCrJ 2022), arXiv 2008.08198",
    sizes={"patch_size": 11, "is_wide": False},
    make_inputs=make_inputs,
    variants={
        "paper": Variant({}, 33_172),
        "wide": Variant({"is_wide": True}, 45_394),
        "patch-15": Variant({"patch_size": 15}, 40_340),
    },
    generate=generate,
    output_unit="px",
    output_scale="patch_size",
)(BraggNN)
