"""AutoPhaseNN: a 3D encoder and two decoders give a crystal's amplitude and phase from its diffraction alone.

Source: Yao et al., AutoPhaseNN: unsupervised physics-aware deep learning of 3D nanoscale Bragg coherent diffraction
imaging, npj Computational Materials 8, 124 (2022).

Axes: B batch, S side of a volume in voxels.
"""

import math
from typing import Any

import torch
from numpy.typing import NDArray
from torch import nn

import sambaflow.samba as samba
from rdukit.errors import InvalidArgument
from rdukit_zoo.datasets.volumes import make_crystals
from rdukit_zoo.registry import SizeValue, Variant, model


class AutoPhaseNN(nn.Module):
    """Magnitudes [B, 1, S, S, S] → (mean absolute error [] of the object's own pattern, object [B, 2, S, S, S]).

    The object is amplitude, 0 to 1 and 0 outside the middle half, and phase in radians. Its Fourier transform is
    compared with the input; there is no target.
    """

    def __init__(
        self, size: int = 64, width: int = 32, blocks: int = 4, threshold: float = 0.1, has_strides: bool = False
    ) -> None:
        super().__init__()
        if size % (2 ** (blocks + 1)):
            raise InvalidArgument(f"size is {size}; expected a multiple of {2 ** (blocks + 1)}")
        self.size, self.threshold = size, threshold
        widths = [width * 2**block for block in range(blocks)]
        self.encoder = nn.Sequential(
            *[part for inputs, outputs in zip((1, *widths[:-1]), widths, strict=True)
              for part in _down(inputs, outputs, has_strides)]
        )  # fmt: skip
        self.amplitude = nn.Sequential(*_decoder(widths, has_strides), nn.Sigmoid())
        self.phase = nn.Sequential(*_decoder(widths, has_strides), nn.Tanh())

    def forward(self, pattern: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        code = self.encoder(pattern)
        amplitude = self.amplitude(code)
        amplitude = torch.where(amplitude < self.threshold, torch.zeros_like(amplitude), amplitude)
        margin = [self.size // 4] * 6
        amplitude = nn.functional.pad(amplitude, margin)
        phase = nn.functional.pad(self.phase(code) * math.pi, margin)
        crystal = torch.complex(amplitude * torch.cos(phase), amplitude * torch.sin(phase))
        axes = (-3, -2, -1)
        found = torch.fft.fftshift(torch.fft.fftn(crystal, dim=axes), dim=axes).abs()
        found = found / (found.amax(axes, keepdim=True) + 1e-6)
        return (found - pattern).abs().mean(), torch.cat([amplitude, phase], 1)


def _normed(convolution: nn.Module, width: int) -> list[nn.Module]:
    return [convolution, nn.LeakyReLU(0.01), nn.BatchNorm3d(width)]


def _down(inputs: int, outputs: int, has_strides: bool) -> list[nn.Module]:
    """Return two convolutions that halve the volume at the end."""
    second = nn.Conv3d(outputs, outputs, 3, stride=2 if has_strides else 1, padding=1)
    parts = _normed(nn.Conv3d(inputs, outputs, 3, padding=1), outputs) + _normed(second, outputs)
    return parts if has_strides else [*parts, nn.MaxPool3d(2)]


def _decoder(widths: list[int], has_strides: bool) -> list[nn.Module]:
    """Return convolutions that double the volume once less than the encoder halved it."""
    parts: list[nn.Module] = []
    for inputs, outputs in zip(reversed(widths), reversed(widths[:-1]), strict=False):
        parts += _normed(nn.Conv3d(inputs, outputs, 3, padding=1), outputs)
        if has_strides:
            parts += _normed(nn.ConvTranspose3d(outputs, outputs, 3, 2, 1, output_padding=1), outputs)
        else:
            parts += _normed(nn.Conv3d(outputs, outputs, 3, padding=1), outputs)
            parts.append(nn.Upsample(scale_factor=2, mode="trilinear", align_corners=True))
    return [*parts, nn.Conv3d(widths[0], 1, 3, padding=1)]


def make_inputs(batch_size: int, size: int, **sizes: SizeValue) -> tuple[samba.SambaTensor, ...]:
    """Return a dummy input: ``pattern`` [batch, 1, S, S, S]."""
    return (samba.rand(batch_size, 1, size, size, size, name="pattern", batch_dim=0),)


def generate(count: int, seed: int, **sizes: SizeValue) -> dict[str, NDArray[Any]]:
    """Draw crystals and their diffraction; see ``make_crystals``."""
    return make_crystals(count, seed, int(sizes["size"]))


model(
    name="autophasenn",
    title="AutoPhaseNN: crystals from their diffraction",
    task="self-supervised",
    modality="volumes",
    licence="Apache-2.0",
    source="Yao et al., AutoPhaseNN, npj Computational Materials 8, 124 (2022)",
    sizes={"size": 16, "width": 4, "blocks": 3, "threshold": 0.1, "has_strides": False},
    make_inputs=make_inputs,
    output_channels=("prediction: amplitude", "prediction: phase"),
    variants={
        "pooled": Variant({"size": 64, "width": 32, "blocks": 4}, 7_003_106),
        "strided": Variant({"size": 64, "width": 32, "blocks": 4, "has_strides": True}, 7_003_106),
    },
    generate=generate,
)(AutoPhaseNN)
