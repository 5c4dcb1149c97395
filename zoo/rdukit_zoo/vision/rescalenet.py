"""ReScaleNet: a residual network without normalisation; fixed scales and learned biases replace norms.

Source: Shao et al., Is normalization indispensable for training deep neural networks? (NeurIPS 2020). ``calibrate``
estimates the mean that a bias subtracts over the first batches, before training: a graph has no branches.

Axes: B batch, C channels, K classes.
"""

from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import nn

import sambaflow.samba as samba
from rdukit.errors import InvalidArgument
from rdukit_zoo.datasets.digits import digit_images
from rdukit_zoo.registry import SizeValue, Variant, model

#: Each stage halves the image, and its blocks give four times their inner width.
EXPANSION = 4


class CentredBias(nn.Module):
    """Adds a learned bias and subtracts the calibrated mean: [B, C, ...] → same."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(1, channels, 1, 1))
        self.mean: torch.Tensor
        self.register_buffer("mean", torch.zeros(1, channels, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + (self.bias - self.mean)


class ReScaleBlock(nn.Module):
    """Three convolutions behind centred biases, scaled and added to the scaled shortcut."""

    def __init__(self, inputs: int, width: int, number: int, blocks: int, stride: int) -> None:
        super().__init__()
        outputs = EXPANSION * width
        self.bias_1, self.bias_2, self.bias_3 = CentredBias(inputs), CentredBias(width), CentredBias(width)
        self.conv_1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.conv_2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.conv_3 = nn.Conv2d(width, outputs, 1, bias=False)
        self.scale = nn.Parameter(torch.ones(1))
        # Blocks count from the depth on, so that every block's shortcut keeps a positive scale.
        self.residual, self.identity = blocks**-0.5, (number / (number + 1)) ** 0.5
        gain = (number + 1) ** (-1 / 6) * blocks ** (1 / 6)
        for conv in (self.conv_1, self.conv_2, self.conv_3):
            nn.init.normal_(conv.weight, std=gain * (conv.weight[0].numel() / 2) ** -0.5)
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            projection = nn.Conv2d(inputs, outputs, 1, bias=False)
            nn.init.kaiming_normal_(projection.weight, a=1)
            pool = [nn.AvgPool2d(stride)] if stride != 1 else []
            self.shortcut = nn.Sequential(*pool, CentredBias(inputs), projection)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = F.relu(self.conv_1(self.bias_1(x)))
        made = F.relu(self.conv_2(self.bias_2(made)))
        made = self.conv_3(self.bias_3(made)) * (self.scale * self.residual)
        return F.relu(made + self.identity * self.shortcut(x))


class ReScaleNet(nn.Module):
    """(image [B, C, Y, X], label [B]) → (loss [], logits [B, K]); the image alone → the logits."""

    def __init__(
        self, blocks_1: int = 3, blocks_2: int = 4, blocks_3: int = 6, blocks_4: int = 3, width: int = 64,
        image_size: int = 224, channels: int = 3, num_classes: int = 1000,
    ) -> None:  # fmt: skip
        super().__init__()
        if image_size % 32:
            raise InvalidArgument(
                f"image_size is {image_size}; expected a multiple of 32, because it is halved five times"
            )
        counts = (blocks_1, blocks_2, blocks_3, blocks_4)
        total = sum(counts)
        self.stem = nn.Conv2d(channels, width, 7, 2, 3, bias=False)
        nn.init.kaiming_normal_(self.stem.weight)
        self.stem_bias = CentredBias(width)
        inputs, number, blocks = width, total - 1, []
        for stage, count in enumerate(counts):
            for block in range(count):
                inner = width * 2**stage
                blocks.append(ReScaleBlock(inputs, inner, number, total, 2 if stage and not block else 1))
                inputs, number = EXPANSION * inner, number + 1
        self.blocks = nn.ModuleList(blocks)
        self.head_bias, self.head = CentredBias(inputs), nn.Linear(inputs, num_classes)
        nn.init.kaiming_normal_(self.head.weight, a=1)

    def forward(
        self, image: torch.Tensor, label: torch.Tensor | None = None
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        x = F.max_pool2d(F.relu(self.stem_bias(self.stem(image))), 3, 2, 1)
        for block in self.blocks:
            x = block(x)
        logits_BK: torch.Tensor = self.head(self.head_bias(x).mean((2, 3)))
        return logits_BK if label is None else (F.cross_entropy(logits_BK, label), logits_BK)

    @torch.no_grad()
    def calibrate(self, images: Iterable[torch.Tensor]) -> None:
        """Estimate the mean that each bias subtracts, over batches of images [B, C, Y, X]; before training.

        The layers are estimated batch by batch, each on the present output of the layers before it.
        """
        for number, image in enumerate(images, 1):
            hooks = [
                module.register_forward_pre_hook(_estimate(number))
                for module in self.modules()
                if isinstance(module, CentredBias)
            ]
            self(image)
            for hook in hooks:
                hook.remove()


def _estimate(number: int) -> Any:
    """Return a hook that moves a bias's mean to the average over ``number`` batches."""

    def hook(module: CentredBias, given: tuple[torch.Tensor, ...]) -> None:
        found = given[0].mean((0, 2, 3), keepdim=True)
        module.mean += (found - module.mean) / number

    return hook


def make_inputs(
    batch_size: int, image_size: int, channels: int, num_classes: int, **sizes: SizeValue
) -> tuple[samba.SambaTensor, ...]:
    """Return dummy inputs: ``image`` [batch, C, Y, X] and ``label`` [batch]."""
    image = samba.randn(batch_size, channels, image_size, image_size, name="image", batch_dim=0)
    return image, samba.randint(num_classes, (batch_size,), name="label", batch_dim=0)


def generate(count: int, seed: int, **sizes: SizeValue) -> dict[str, NDArray[Any]]:
    """Return the bundled digits; see ``digit_images``."""
    return digit_images(count, seed, int(sizes["image_size"]), int(sizes["channels"]))


def _blocks(*counts: int) -> dict[str, SizeValue]:
    return {f"blocks_{stage}": count for stage, count in enumerate(counts, 1)}


_PUBLISHED: dict[str, SizeValue] = {"width": 64, "image_size": 224, "channels": 3, "num_classes": 1000}

model(
    name="rescalenet",
    free_sizes=frozenset({"image_size"}),
    title="ReScaleNet: a residual network without norms",
    task="image-classification",
    licence="Apache-2.0",
    source="Shao et al., Is normalization indispensable for training deep neural networks? (NeurIPS 2020)",
    sizes=_blocks(1, 1, 1, 1) | {"width": 8, "image_size": 32, "channels": 1, "num_classes": 10},
    make_inputs=make_inputs,
    variants={
        "50": Variant(_PUBLISHED | _blocks(3, 4, 6, 3), 25_528_568),
        "101": Variant(_PUBLISHED | _blocks(3, 4, 23, 3), 44_494_601),
        "200": Variant(_PUBLISHED | _blocks(3, 24, 36, 3), 64_583_978),
    },
    generate=generate,
    is_drawn_from_a_set=True,
)(ReScaleNet)
