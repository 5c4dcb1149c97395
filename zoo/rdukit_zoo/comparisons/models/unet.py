"""A U-Net for segmentation, with batch norms.

Axes: B batch, C channels, Y and X rows and columns, K classes.
"""

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import nn


@dataclass(frozen=True, slots=True)
class UnetSizes:
    """Sizes of a U-Net: ``width`` channels at full size, twice as many at each of ``depth`` halvings."""

    image: int = 256
    width: int = 32
    depth: int = 4
    channels: int = 3
    classes: int = 2


def make_block(inputs: int, outputs: int) -> nn.Sequential:
    """Two 3x3 convolutions, each with a batch norm and a ReLU."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
        nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    )


class Unet(nn.Module):
    """Logits [B, K, Y, X] of images [B, C, Y, X]; rows and columns are multiples of ``2 ** depth``."""

    def __init__(self, sizes: UnetSizes) -> None:
        super().__init__()
        widths = [sizes.width * 2**level for level in range(sizes.depth + 1)]
        self.first = make_block(sizes.channels, widths[0])
        self.pool = nn.MaxPool2d(2)
        self.down = nn.ModuleList(make_block(fine, coarse) for fine, coarse in pairwise(widths))
        pairs = list(pairwise(widths))[::-1]
        self.up = nn.ModuleList(nn.ConvTranspose2d(coarse, fine, 2, 2) for fine, coarse in pairs)
        self.join = nn.ModuleList(make_block(2 * fine, fine) for fine, _ in pairs)
        self.last = nn.Conv2d(widths[0], sizes.classes, 1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        kept = [self.first(image)]
        for block in self.down:
            kept.append(block(self.pool(kept[-1])))
        x_BCYX = kept.pop()
        for up, join in zip(self.up, self.join, strict=True):
            x_BCYX = join(torch.cat([kept.pop(), up(x_BCYX)], 1))
        logits: torch.Tensor = self.last(x_BCYX)
        return logits


def vary_statistics(model: nn.Module) -> None:
    """Give batch norms means, variances, weights and biases other than 0 and 1, as training would."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert module.running_mean is not None and module.running_var is not None
            nn.init.normal_(module.running_mean, std=0.1)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, std=0.1)


__all__ = ["Unet", "UnetSizes", "make_block", "vary_statistics"]
