"""U-Net 3D: segmentation of volumes by a contracting and an expanding path with shortcuts.

Source: Çiçek et al., 3D U-Net (2016), arXiv 1606.06650, in the form of Wolny et al., pytorch-3dunet (2020): group
norms before each convolution, nearest-neighbour upsampling, shortcuts by concatenation. The vendor's own form is
not public; this one is our choice.

Axes: B batch, C channels, Z, Y and X of a volume.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import nn

import sambaflow.samba as samba
from rdukit.errors import InvalidArgument
from rdukit_zoo.datasets.volumes import make_cells
from rdukit_zoo.registry import SizeValue, Variant, model
from rdukit_zoo.vision.unet2d import dice_loss

#: Most groups of a norm; as many as divide its channels.
GROUPS = 8


class NormedConvolution(nn.Module):
    """Group norm, a convolution of 3 x 3 x 3 without bias, ReLU."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.groupnorm = nn.GroupNorm(math.gcd(GROUPS, inputs), inputs)
        self.conv = nn.Conv3d(inputs, outputs, 3, padding=1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.conv(self.groupnorm(x)))


class Unet3d(nn.Module):
    """(volume [B, C, Z, Y, X], mask [B, 1, Z, Y, X], 0 or 1) → (loss [], probability [B, 1, Z, Y, X]).

    The loss is cross entropy and Dice loss added up. The volume alone gives the probability. The axes are multiples of
    8.
    """

    def __init__(self, in_channels: int = 1, features: int = 64, levels: int = 4, size: int = 64) -> None:
        super().__init__()
        if size % 2 ** (levels - 1):
            raise InvalidArgument(f"size is {size}; expected a multiple of {2 ** (levels - 1)}")
        widths = [features * 2**level for level in range(levels)]
        self.encoders = nn.ModuleList()
        inputs = in_channels
        for width in widths:
            inner = max(width // 2, inputs)
            self.encoders.append(nn.Sequential(NormedConvolution(inputs, inner), NormedConvolution(inner, width)))
            inputs = width
        self.decoders = nn.ModuleList()
        for width, deeper in zip(reversed(widths[:-1]), reversed(widths[1:]), strict=True):
            self.decoders.append(
                nn.Sequential(NormedConvolution(width + deeper, width), NormedConvolution(width, width))
            )
        self.final_conv = nn.Conv3d(features, 1, 1)

    def forward(
        self, volume: torch.Tensor, mask: torch.Tensor | None = None
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        x, shortcuts = volume, []
        for number, encoder in enumerate(self.encoders):
            x = encoder(F.max_pool3d(x, 2) if number else x)
            shortcuts.append(x)
        for decoder, shortcut in zip(self.decoders, reversed(shortcuts[:-1]), strict=True):
            x = decoder(torch.cat([shortcut, F.interpolate(x, scale_factor=2, mode="nearest")], 1))
        logits = self.final_conv(x)
        found = torch.sigmoid(logits)
        if mask is None:
            return found
        return F.binary_cross_entropy_with_logits(logits, mask) + dice_loss(found, mask), found


def make_inputs(batch_size: int, in_channels: int, size: int, **sizes: SizeValue) -> tuple[samba.SambaTensor, ...]:
    """Return dummy inputs: ``volume`` [batch, C, Z, Y, X] and ``mask`` [batch, 1, Z, Y, X]."""
    volume = samba.randn(batch_size, in_channels, size, size, size, name="volume", batch_dim=0)
    return volume, samba.rand(batch_size, 1, size, size, size, name="mask", batch_dim=0)


def generate(count: int, seed: int, **sizes: SizeValue) -> dict[str, NDArray[Any]]:
    """Draw cells; see ``make_cells``."""
    return make_cells(count, seed, int(sizes["size"]))


model(
    name="unet3d",
    free_sizes=frozenset({"size"}),
    title="U-Net for volumes",
    task="segmentation",
    modality="volumes",
    licence="Apache-2.0",
    source="Çiçek et al., 3D U-Net (2016), arXiv 1606.06650; Wolny et al., pytorch-3dunet (2020)",
    sizes={"in_channels": 1, "features": 8, "levels": 3, "size": 16},
    make_inputs=make_inputs,
    variants={"64": Variant({"features": 64, "levels": 4, "size": 64}, 16_318_691)},
    generate=generate,
)(Unet3d)
