"""U-Net 2D: segmentation of images by a contracting and an expanding path with shortcuts.

Source: Ronneberger et al., U-Net (2015), in the form of Buda et al., Association of genomic subtypes of lower-grade
gliomas (2019): batch norms, convolutions without bias, transposed convolutions, and the Dice loss. Parameters have the
names of the latter's published program.

Axes: B batch, C channels, Y and X rows and columns.
"""

from collections import OrderedDict
from typing import Any

import torch
from numpy.typing import NDArray
from torch import nn

import sambaflow.samba as samba
from rdukit.errors import InvalidArgument
from rdukit_zoo.datasets.lesions import make_lesions
from rdukit_zoo.registry import SizeValue, Variant, model


def dice_loss(found: torch.Tensor, target: torch.Tensor, smooth: float = 1.0) -> torch.Tensor:
    """Return one minus the Dice coefficient of all pixels of a batch: []."""
    overlap = (found * target).sum()
    return 1 - (2 * overlap + smooth) / (found.sum() + target.sum() + smooth)


class Unet2d(nn.Module):
    """(image [B, C, Y, X], mask [B, 1, Y, X], 0 or 1) → (Dice loss [], probability [B, 1, Y, X]).

    The image alone gives the probability. Y and X are multiples of 16.
    """

    def __init__(self, in_channels: int = 3, init_features: int = 32, image_size: int = 256) -> None:
        super().__init__()
        if image_size % 16:
            raise InvalidArgument(
                f"image_size is {image_size}; expected a multiple of 16, because it is halved four times"
            )
        widths = [init_features * 2**level for level in range(5)]
        for level, width in enumerate(widths[:4], 1):
            before = widths[level - 2] if level > 1 else in_channels
            self.add_module(f"encoder{level}", _block(before, width, f"enc{level}"))
        self.pool = nn.MaxPool2d(2, 2)
        self.bottleneck = _block(widths[3], widths[4], "bottleneck")
        for level in range(4, 0, -1):
            self.add_module(f"upconv{level}", nn.ConvTranspose2d(widths[level], widths[level - 1], 2, 2))
            self.add_module(f"decoder{level}", _block(2 * widths[level - 1], widths[level - 1], f"dec{level}"))
        self.conv = nn.Conv2d(init_features, 1, 1)

    def forward(
        self, image: torch.Tensor, mask: torch.Tensor | None = None
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        x, shortcuts = image, []
        for level in range(1, 5):
            x = self.get_submodule(f"encoder{level}")(x)
            shortcuts.append(x)
            x = self.pool(x)
        x = self.bottleneck(x)
        for level in range(4, 0, -1):
            x = torch.cat([self.get_submodule(f"upconv{level}")(x), shortcuts[level - 1]], 1)
            x = self.get_submodule(f"decoder{level}")(x)
        found = torch.sigmoid(self.conv(x))
        return found if mask is None else (dice_loss(found, mask), found)


def _block(inputs: int, outputs: int, name: str) -> nn.Sequential:
    """Two convolutions of 3 x 3, each with a batch norm and a ReLU."""
    parts: OrderedDict[str, nn.Module] = OrderedDict()
    for number in (1, 2):
        width = inputs if number == 1 else outputs
        parts[f"{name}conv{number}"] = nn.Conv2d(width, outputs, 3, padding=1, bias=False)
        parts[f"{name}norm{number}"] = nn.BatchNorm2d(outputs)
        parts[f"{name}relu{number}"] = nn.ReLU()
    return nn.Sequential(parts)


def make_inputs(
    batch_size: int, in_channels: int, image_size: int, **sizes: SizeValue
) -> tuple[samba.SambaTensor, ...]:
    """Return dummy inputs: ``image`` [batch, C, Y, X] and ``mask`` [batch, 1, Y, X]."""
    image = samba.randn(batch_size, in_channels, image_size, image_size, name="image", batch_dim=0)
    return image, samba.rand(batch_size, 1, image_size, image_size, name="mask", batch_dim=0)


def generate(count: int, seed: int, **sizes: SizeValue) -> dict[str, NDArray[Any]]:
    """Draw slices with lesions; see ``make_lesions``."""
    return make_lesions(count, seed, int(sizes["image_size"]), int(sizes["in_channels"]))


model(
    name="unet2d",
    free_sizes=frozenset({"image_size"}),
    title="U-Net for images",
    task="segmentation",
    licence="Apache-2.0",
    source="Ronneberger et al., U-Net (2015); Buda et al. (2019), mateuszbuda/brain-segmentation-pytorch",
    sizes={"in_channels": 3, "init_features": 8, "image_size": 64},
    make_inputs=make_inputs,
    variants={
        "32": Variant({"init_features": 32, "image_size": 256}, 7_763_041),
        "16": Variant({"init_features": 16, "image_size": 256}, 1_942_577),
        "8": Variant({"init_features": 8, "image_size": 256}, 486_553),
    },
    generate=generate,
)(Unet2d)
