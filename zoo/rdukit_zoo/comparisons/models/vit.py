"""A vision transformer, pre-norm, with a class token.

Axes: B batch, N image side, P patches and class token, C width, K classes.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

EPSILON = 1e-6


@dataclass(frozen=True, slots=True)
class VitSizes:
    """Sizes of a vision transformer; the defaults are ViT-S/16 at 224 pixels."""

    image: int = 224
    patch: int = 16
    width: int = 384
    layers: int = 12
    heads: int = 6
    feed_forward: int = 1536
    classes: int = 1000


class EncoderLayer(nn.Module):
    """Self-attention and a GELU network, each after a norm and added to what came in."""

    def __init__(self, sizes: VitSizes) -> None:
        super().__init__()
        self.heads = sizes.heads
        self.attention_norm = nn.LayerNorm(sizes.width, eps=EPSILON)
        self.query, self.key, self.value, self.output = (nn.Linear(sizes.width, sizes.width) for _ in range(4))
        self.feed_forward_norm = nn.LayerNorm(sizes.width, eps=EPSILON)
        self.up = nn.Linear(sizes.width, sizes.feed_forward)
        self.down = nn.Linear(sizes.feed_forward, sizes.width)

    def forward(self, x_BPC: torch.Tensor) -> torch.Tensor:
        batch, count, width = x_BPC.shape
        normed = self.attention_norm(x_BPC)

        def split(x: torch.Tensor) -> torch.Tensor:
            return x.view(batch, count, self.heads, -1).transpose(1, 2)

        attended = F.scaled_dot_product_attention(
            split(self.query(normed)), split(self.key(normed)), split(self.value(normed))
        )
        x_BPC = x_BPC + self.output(attended.transpose(1, 2).reshape(batch, count, width))
        made: torch.Tensor = x_BPC + self.down(F.gelu(self.up(self.feed_forward_norm(x_BPC))))
        return made


class Vit(nn.Module):
    """Logits [B, K] of images [B, 3, N, N]."""

    def __init__(self, sizes: VitSizes) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, sizes.width, sizes.patch, sizes.patch)
        self.class_token = nn.Parameter(torch.randn(1, 1, sizes.width) * 0.02)
        count = (sizes.image // sizes.patch) ** 2 + 1
        self.positions = nn.Parameter(torch.randn(1, count, sizes.width) * 0.02)
        self.layers = nn.ModuleList(EncoderLayer(sizes) for _ in range(sizes.layers))
        self.norm = nn.LayerNorm(sizes.width, eps=EPSILON)
        self.head = nn.Linear(sizes.width, sizes.classes)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x_BPC = self.patches(image).flatten(2).transpose(1, 2)
        x_BPC = torch.cat([self.class_token.expand(x_BPC.shape[0], -1, -1), x_BPC], 1) + self.positions
        for layer in self.layers:
            x_BPC = layer(x_BPC)
        logits: torch.Tensor = self.head(self.norm(x_BPC)[:, 0])
        return logits


__all__ = ["EncoderLayer", "Vit", "VitSizes"]
