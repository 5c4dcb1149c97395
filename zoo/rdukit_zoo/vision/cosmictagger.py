"""CosmicTagger: one U-ResNet separates cosmic rays from the neutrino in three wire planes, which meet at its deepest
layer.

Source: Acciarri et al., Cosmic Ray Background Removal With Deep Neural Networks in SBND (2021),
10.3389/frai.2021.649917: one U-ResNet for all planes, which meet at its deepest layer. In 2D each plane is an image; in
3D the planes are an axis that only the deepest layer's convolutions cross.

Axes: B batch, P planes, Y and X ticks and wires, K classes.
"""

import itertools
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import nn

import sambaflow.samba as samba
from rdukit.errors import InvalidArgument
from rdukit_zoo.datasets.tracks import PLANES, make_events
from rdukit_zoo.registry import SizeValue, Variant, model

CLASSES = 3


@dataclass(frozen=True, slots=True)
class CosmicSizes:
    """Sizes of a CosmicTagger; the defaults train within minutes on a processor.

    Raises:
        InvalidArgument: the sizes do not fit together.
    """

    height: int = 64
    width: int = 64
    #: Filters of the first layer; each layer down has as many more.
    filters: int = 4
    depth: int = 3
    blocks: int = 1
    deepest_blocks: int = 1
    final_blocks: int = 1
    deepest_kernel: int = 5
    deepest_filters: int = 16
    is_residual: bool = True
    #: Whether shortcuts are concatenated and projected, or otherwise added.
    concatenates: bool = True

    def __post_init__(self) -> None:
        for name, value in (("height", self.height), ("width", self.width)):
            if value % 2**self.depth:
                raise InvalidArgument(
                    f"{name} is {value}; expected a multiple of {2**self.depth}, for depth {self.depth}"
                )


class ConvolutionBlock(nn.Module):
    """A convolution, a batch norm and, if active, leaky ReLU. In 3D ``planes`` of the axis of planes are crossed."""

    def __init__(
        self, inputs: int, outputs: int, kernel: int, is_3d: bool, planes: int = 1, is_active: bool = True
    ) -> None:
        super().__init__()
        if is_3d:
            self.conv: nn.Module = nn.Conv3d(
                inputs, outputs, (planes, kernel, kernel), padding=(planes // 2, kernel // 2, kernel // 2)
            )
            self.norm: nn.Module = nn.BatchNorm3d(outputs)
        else:
            self.conv, self.norm = nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2), nn.BatchNorm2d(outputs)
        self.is_active = is_active

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.conv(x))
        return F.leaky_relu(x) if self.is_active else x


class ResidualBlock(nn.Module):
    """Two convolutions added to their input."""

    def __init__(self, width: int, kernel: int, is_3d: bool) -> None:
        super().__init__()
        self.first = ConvolutionBlock(width, width, kernel, is_3d)
        self.second = ConvolutionBlock(width, width, kernel, is_3d, is_active=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.leaky_relu(self.second(self.first(x)) + x)


class CosmicTagger(nn.Module):
    """(charge [B, P, Y, X], label [B, P, Y, X]) → (focal loss [], logits [B, K, P, Y, X]); charge alone → logits."""

    def __init__(self, is_3d: bool, **sizes: SizeValue) -> None:
        super().__init__()
        known = CosmicSizes(**sizes)  # type: ignore[arg-type]
        self.is_3d, self.concatenates, self.depth = is_3d, known.concatenates, known.depth
        widths = [known.filters * (level + 1) for level in range(known.depth + 1)]

        def series(width: int, blocks: int, kernel: int = 3) -> nn.Sequential:
            if known.is_residual:
                return nn.Sequential(*(ResidualBlock(width, kernel, is_3d) for _ in range(blocks)))
            return nn.Sequential(*(ConvolutionBlock(width, width, kernel, is_3d) for _ in range(blocks)))

        self.initial = ConvolutionBlock(1, widths[0], 5, is_3d)
        steps = list(itertools.pairwise(widths))
        self.down = nn.ModuleList(series(width, known.blocks) for width in widths[:-1])
        self.downsample = nn.ModuleList(ConvolutionBlock(a, b, 1, is_3d) for a, b in steps)
        meeting, planes = (widths[-1], PLANES) if is_3d else (PLANES * widths[-1], 1)
        self.merge = ConvolutionBlock(meeting, known.deepest_filters, 1, is_3d, planes)
        self.deepest = series(known.deepest_filters, known.deepest_blocks, known.deepest_kernel)
        self.split = ConvolutionBlock(known.deepest_filters, meeting, 1, is_3d, planes)
        self.upsample = nn.ModuleList(ConvolutionBlock(b, a, 1, is_3d) for a, b in steps)
        if known.concatenates:
            self.connect = nn.ModuleList(ConvolutionBlock(2 * a, a, 1, is_3d) for a, _ in steps)
        self.up = nn.ModuleList(series(width, known.blocks) for width in widths[:-1])
        self.final = series(widths[0], known.final_blocks)
        self.bottleneck = nn.Conv3d(widths[0], CLASSES, 1) if is_3d else nn.Conv2d(widths[0], CLASSES, 1)
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Conv3d):
                nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def forward(
        self, charge: torch.Tensor, label: torch.Tensor | None = None
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        if self.is_3d:
            logits_BKPYX = self._read([charge.unsqueeze(1)])[0]
        else:
            logits_BKPYX = torch.stack(self._read(list(charge.unsqueeze(2).unbind(1))), 2)
        return logits_BKPYX if label is None else (focal_loss(logits_BKPYX, label), logits_BKPYX)

    def _read(self, planes: list[torch.Tensor]) -> list[torch.Tensor]:
        """Return logits of each plane; in 3D there is one tensor with all of them."""
        planes = _each(self.initial, planes)
        shortcuts = []
        for down, downsample in zip(self.down, self.downsample, strict=True):
            shortcuts.append(planes)
            planes = _each(downsample, _each(self._pool, _each(down, planes)))
        deepest = self.split(self.deepest(self.merge(torch.cat(planes, 1))))
        planes = [deepest] if self.is_3d else list(deepest.chunk(PLANES, 1))
        for level in reversed(range(self.depth)):
            planes = _each(self.upsample[level], _each(self._grow, planes))
            if self.concatenates:
                joined = [torch.cat(pair, 1) for pair in zip(planes, shortcuts[level], strict=True)]
                planes = _each(self.connect[level], joined)
            else:
                planes = [x + shortcut for x, shortcut in zip(planes, shortcuts[level], strict=True)]
            planes = _each(self.up[level], planes)
        return _each(self.bottleneck, _each(self.final, planes))

    def _pool(self, x: torch.Tensor) -> torch.Tensor:
        return F.max_pool3d(x, (1, 2, 2)) if self.is_3d else F.max_pool2d(x, 2)

    def _grow(self, x: torch.Tensor) -> torch.Tensor:
        """Double Y and X by linear interpolation."""
        if not self.is_3d:
            return F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)
        return F.interpolate(x, scale_factor=(1, 2, 2), mode="trilinear", align_corners=False)


def _each(layer: Callable[[torch.Tensor], torch.Tensor], planes: list[torch.Tensor]) -> list[torch.Tensor]:
    return [layer(plane) for plane in planes]


def focal_loss(logits_BKPYX: torch.Tensor, label_BPYX: torch.Tensor) -> torch.Tensor:
    """Return cross entropy [], with each pixel weighted by the square of one minus its class's probability.

    Classes have equal weight, regardless of their number of pixels: with a plain mean, a small network predicts only
    background. The published program has this as its scheme "even", in addition to fixed weights.
    """
    loss_BPYX = F.cross_entropy(logits_BKPYX, label_BPYX, reduction="none")
    focal_BPYX = (1 - torch.exp(-loss_BPYX)) ** 2 * loss_BPYX
    total = torch.zeros(())
    for label in range(CLASSES):
        is_class = (label_BPYX == label).to(focal_BPYX.dtype)
        total = total + (focal_BPYX * is_class).sum() / is_class.sum().clamp(min=1)
    return total / CLASSES


class CosmicTagger2d(CosmicTagger):
    """A CosmicTagger whose planes are three images; see there."""

    def __init__(self, **sizes: SizeValue) -> None:
        super().__init__(False, **sizes)


class CosmicTagger3d(CosmicTagger):
    """A CosmicTagger whose planes are an axis of one volume; see there."""

    def __init__(self, **sizes: SizeValue) -> None:
        super().__init__(True, **sizes)


def make_inputs(batch_size: int, height: int, width: int, **sizes: SizeValue) -> tuple[samba.SambaTensor, ...]:
    """Return dummy inputs: ``charge`` [batch, P, Y, X] and ``label`` of the same shape."""
    charge = samba.rand(batch_size, PLANES, height, width, name="charge", batch_dim=0)
    return charge, samba.randint(CLASSES, (batch_size, PLANES, height, width), name="label", batch_dim=0)


def generate(count: int, seed: int, **sizes: SizeValue) -> dict[str, NDArray[Any]]:
    """Draw events; see ``make_events``."""
    return make_events(count, seed, int(sizes["height"]), int(sizes["width"]))


#: The published program's defaults, on its images of 1280 x 2048.
_DEFAULT: dict[str, SizeValue] = {
    "height": 1280, "width": 2048, "filters": 16, "depth": 6, "blocks": 2, "deepest_blocks": 5, "final_blocks": 5,
    "deepest_kernel": 5, "deepest_filters": 256,
}  # fmt: skip
_A21 = _DEFAULT | {"filters": 8, "final_blocks": 0, "is_residual": False, "concatenates": False}
_SOURCE = "Acciarri et al., Cosmic Ray Background Removal With Deep Neural Networks in SBND (2021)"

model(
    name="cosmictagger2d",
    limits={"label": CLASSES},
    free_sizes=frozenset({"height", "width"}),
    title="CosmicTagger: cosmic rays in three images",
    task="segmentation",
    licence="Apache-2.0",
    source=_SOURCE,
    sizes=asdict(CosmicSizes()),
    make_inputs=make_inputs,
    variants={"uresnet": Variant(_DEFAULT, 18_382_131), "a21": Variant(_A21, 8_510_547)},
    generate=generate,
)(CosmicTagger2d)

model(
    name="cosmictagger3d",
    limits={"label": CLASSES},
    free_sizes=frozenset({"height", "width"}),
    title="CosmicTagger: cosmic rays in one volume",
    task="segmentation",
    modality="volumes",
    licence="Apache-2.0",
    source=_SOURCE,
    sizes=asdict(CosmicSizes()),
    make_inputs=make_inputs,
    variants={"uresnet": Variant(_DEFAULT, 18_381_459)},
    generate=generate,
)(CosmicTagger3d)
