"""UNet: segmentation of images by a contracting and an expanding path.

Source: Ronneberger et al., "U-Net" (2015), with padded convolutions; the vendor's variant is not public.
"""

import torch
from torch import nn


class DoubleConvolution(nn.Module):
    """Two 3x3 convolutions with batch norm and ReLU: [B, in, H, W] → [B, out, H, W]."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(out_channels)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(out_channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(self.norm2(self.conv2(x)))


class UNet(nn.Module):
    """Images [B, in_channels, H, W] → logits [B, num_classes, H, W]; H and W are multiples of 2 ** depth."""

    def __init__(self, in_channels: int = 3, num_classes: int = 1, init_features: int = 64, depth: int = 4) -> None:
        super().__init__()
        widths = [init_features * 2**level for level in range(depth + 1)]
        inputs = [in_channels, *widths[:-1]]
        self.encoders = nn.ModuleList(DoubleConvolution(i, o) for i, o in zip(inputs, widths, strict=True))
        self.pool = nn.MaxPool2d(2)
        self.ups = nn.ModuleList(nn.ConvTranspose2d(w * 2, w, 2, stride=2) for w in reversed(widths[:-1]))
        self.decoders = nn.ModuleList(DoubleConvolution(w * 2, w) for w in reversed(widths[:-1]))
        self.head = nn.Conv2d(init_features, num_classes, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept: list[torch.Tensor] = []
        for level, encoder in enumerate(self.encoders):
            x = encoder(self.pool(x) if level else x)
            kept.append(x)
        kept.pop()
        for up, decoder in zip(self.ups, self.decoders, strict=True):
            x = decoder(torch.cat([up(x), kept.pop()], dim=1))
        logits: torch.Tensor = self.head(x)
        return logits


__all__ = ["UNet"]
