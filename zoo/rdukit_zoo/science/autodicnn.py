"""AutoDiCNN: a convolutional auto-encoder of diffraction frames. Nothing public describes the vendor's: this is ours.

The frame is narrowed to a few numbers and drawn again from them, which keeps the peaks and loses the noise.

Axes: N frames, B batch, S side of a frame in pixels, Z numbers of a code.
"""

from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import nn

import sambaflow.samba as samba
from rdukit.errors import InvalidArgument
from rdukit_zoo.registry import SizeValue, Variant, model


@dataclass(frozen=True, slots=True)
class AutoDiSizes:
    """Sizes of an AutoDiCNN; the defaults train within a minute on a processor.

    Raises:
        InvalidArgument: the side is not a multiple of 8, it is halved three times.
    """

    #: Side of a frame in pixels.
    size: int = 32
    #: Filters of the first layer; the others have twice and four times as many.
    width: int = 8
    #: Numbers of a code.
    latent: int = 24

    def __post_init__(self) -> None:
        if self.size % 8:
            raise InvalidArgument(f"size is {self.size}; expected a multiple of 8, because it is halved three times")


class AutoDiCnn(nn.Module):
    """frame [B, 1, S, S] → (loss [], frame drawn again [B, 1, S, S]); the loss is the mean squared error."""

    def __init__(self, **sizes: SizeValue) -> None:
        super().__init__()
        known = AutoDiSizes(**sizes)  # type: ignore[arg-type]
        widths = (1, known.width, 2 * known.width, 4 * known.width)
        self.side, self.deepest = known.size // 8, widths[-1]
        steps = list(pairwise(widths))
        self.down = nn.ModuleList(nn.Conv2d(a, b, 4, 2, 1) for a, b in steps)
        self.code = nn.Linear(self.deepest * self.side**2, known.latent)
        self.spread = nn.Linear(known.latent, self.deepest * self.side**2)
        self.up = nn.ModuleList(nn.ConvTranspose2d(b, a, 4, 2, 1) for a, b in reversed(steps))

    def forward(self, frame: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = frame
        for layer in self.down:
            x = F.leaky_relu(layer(x))
        code_BZ = self.code(x.flatten(1))
        x = F.leaky_relu(self.spread(code_BZ)).view(-1, self.deepest, self.side, self.side)
        for number, layer in enumerate(self.up):
            x = layer(F.leaky_relu(x) if number else x)
        return F.mse_loss(x, frame), x


def make_inputs(batch_size: int, size: int = 32, **sizes: SizeValue) -> tuple[samba.SambaTensor, ...]:
    """Return the dummy input ``frame`` [batch, 1, size, size]."""
    return (samba.rand(batch_size, 1, size, size, name="frame", batch_dim=0),)


def generate(count: int, seed: int, **sizes: SizeValue) -> dict[str, NDArray[Any]]:
    """Draw frames of a crystal that turns: the Bragg peaks of a square lattice that lie on Ewald's sphere.

    Lattice constant, direction and mosaic width differ; intensity falls with the distance from the beam, as atoms'
    thermal motion has it; photons are counted.

    Returns:
        ``frame`` [N, 1, S, S] float32 on 0..1.
    """
    draw = np.random.default_rng([seed, 29])
    side = int(sizes["size"])
    across = np.linspace(-1, 1, side)
    row_SS, column_SS = np.meshgrid(across, across, indexing="ij")
    places = np.array([(h, k) for h in range(-6, 7) for k in range(-6, 7) if (h, k) != (0, 0)])
    frames = np.zeros((count, 1, side, side), np.float32)
    for number in range(count):
        angle, spacing, mosaic = draw.uniform(0, np.pi / 2), draw.uniform(0.3, 0.5), draw.uniform(0.06, 0.1)
        turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
        peaks = places @ turn * spacing
        distance = (peaks**2).sum(1)
        tilt = draw.normal(0, 0.3, 2)
        off_sphere = peaks @ tilt - distance / 4
        heights = np.exp(-distance) * np.exp(-((off_sphere / 0.2) ** 2))
        inside = (np.abs(peaks) < 1.1).all(1) & (heights > 0.01)
        square = (row_SS - peaks[inside, 0, None, None]) ** 2 + (column_SS - peaks[inside, 1, None, None]) ** 2
        profile = (heights[inside, None, None] * np.exp(-square / (2 * mosaic**2))).sum(0)
        photons = draw.poisson(200 * profile + 4)
        frames[number, 0] = np.clip(photons / 200, 0, 1)
    return {"frame": frames}


model(
    name="autodicnn",
    title="AutoDiCNN: diffraction frames in a few numbers",
    task="self-supervised",
    modality="images",
    licence="Apache-2.0",
    source="ours: nothing public describes the vendor's model of that name",
    sizes=asdict(AutoDiSizes()),
    make_inputs=make_inputs,
    variants={"small": Variant({}, 45_929)},
    generate=generate,
)(AutoDiCnn)
