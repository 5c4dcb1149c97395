"""LeNet: two convolutions with pooling and three linear layers, for images of 28 x 28.

Source: LeCun et al., Gradient-Based Learning Applied to Document Recognition (1998), with ReLU and max pooling as
tutorials have it today.

Axes: B batch, K classes.
"""

from typing import Any

import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import nn

import sambaflow.samba as samba
from rdukit_zoo.datasets.digits import SIDE, digit_images
from rdukit_zoo.registry import SizeValue, Variant, model


class LeNet(nn.Module):
    """(image [B, 1, 28, 28], label [B]) → (loss [], logits [B, K]); the image alone → the logits."""

    def __init__(self, num_classes: int = 10) -> None:
        super().__init__()
        self.conv_1, self.conv_2 = nn.Conv2d(1, 6, 5, padding=2), nn.Conv2d(6, 16, 5)
        self.dense_1, self.dense_2, self.dense_3 = nn.Linear(400, 120), nn.Linear(120, 84), nn.Linear(84, num_classes)

    def forward(
        self, image: torch.Tensor, label: torch.Tensor | None = None
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        x = F.max_pool2d(F.relu(self.conv_1(image)), 2)
        x = F.max_pool2d(F.relu(self.conv_2(x)), 2).flatten(1)
        logits_BK: torch.Tensor = self.dense_3(F.relu(self.dense_2(F.relu(self.dense_1(x)))))
        return logits_BK if label is None else (F.cross_entropy(logits_BK, label), logits_BK)


def make_inputs(batch_size: int, num_classes: int = 10) -> tuple[samba.SambaTensor, ...]:
    """Return dummy inputs: ``image`` [batch, 1, 28, 28] and ``label`` [batch]."""
    image = samba.randn(batch_size, 1, SIDE, SIDE, name="image", batch_dim=0)
    return image, samba.randint(num_classes, (batch_size,), name="label", batch_dim=0)


def generate(count: int, seed: int, **sizes: SizeValue) -> dict[str, NDArray[Any]]:
    """Return the bundled digits; see ``digit_images``."""
    return digit_images(count, seed)


model(
    name="lenet",
    title="LeNet",
    task="image-classification",
    licence="Apache-2.0",
    source="LeCun et al., Gradient-Based Learning Applied to Document Recognition (1998)",
    sizes={"num_classes": 10},
    make_inputs=make_inputs,
    variants={"digits": Variant({}, 61_706)},
    generate=generate,
    is_drawn_from_a_set=True,
)(LeNet)
