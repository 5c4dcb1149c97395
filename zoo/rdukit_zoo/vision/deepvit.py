"""DeepViT: a vision transformer whose heads are mixed after the softmax, so that deep layers stay different.

Source: Zhou et al., DeepViT: Towards Deeper Vision Transformer (2021), arXiv 2103.11886. The norm over heads after the
mixing is a batch norm, as published; ``norm="layer"`` takes a layer norm, as the program of vit-pytorch has it.

Axes: B batch, P patches and class token, H heads, W width of the model, K classes.
"""

from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import nn

from rdukit.errors import InvalidArgument
from rdukit_zoo.language.attention import split_heads
from rdukit_zoo.registry import SizeValue, Variant, model
from rdukit_zoo.vision.vit import generate, make_inputs


@dataclass(frozen=True, slots=True)
class DeepVitSizes:
    """Sizes of a DeepViT; the defaults train on digits within minutes on a processor.

    Raises:
        InvalidArgument: the sizes do not fit together.
    """

    image_size: int = 28
    channels: int = 1
    patch_size: int = 7
    width: int = 64
    layers: int = 4
    heads: int = 4
    feed_forward: int = 128
    num_classes: int = 10
    #: Kind of norm over heads after they are mixed: batch or layer.
    norm: str = "batch"

    def __post_init__(self) -> None:
        if self.width % self.heads or self.image_size % self.patch_size:
            raise InvalidArgument(
                f"heads {self.heads} must divide width {self.width}, patch_size {self.patch_size} must divide "
                f"image_size {self.image_size}"
            )
        if self.norm not in {"batch", "layer"}:
            raise InvalidArgument(f"norm {self.norm!r} is not valid; expected batch, layer")


class ReAttention(nn.Module):
    """Self-attention whose weights are mixed over heads by a learned matrix, then normed: [B, P, W] → same."""

    def __init__(self, sizes: DeepVitSizes) -> None:
        super().__init__()
        self.heads, self.scale = sizes.heads, (sizes.width // sizes.heads) ** -0.5
        self.qkv = nn.Linear(sizes.width, 3 * sizes.width, bias=False)
        self.mix_HH = nn.Parameter(torch.eye(sizes.heads) + 0.02 * torch.randn(sizes.heads, sizes.heads))
        self.is_batch = sizes.norm == "batch"
        self.norm = nn.BatchNorm2d(sizes.heads) if self.is_batch else nn.LayerNorm(sizes.heads)
        self.proj = nn.Linear(sizes.width, sizes.width)

    def forward(self, x_BPW: torch.Tensor) -> torch.Tensor:
        query, key, value = (split_heads(part, self.heads) for part in self.qkv(x_BPW).chunk(3, -1))
        weight_BHPP = torch.softmax(query @ key.transpose(-2, -1) * self.scale, -1)
        weight_BPPH = weight_BHPP.permute(0, 2, 3, 1) @ self.mix_HH
        if self.is_batch:
            weight_BHPP = self.norm(weight_BPPH.permute(0, 3, 1, 2))
        else:
            weight_BHPP = self.norm(weight_BPPH).permute(0, 3, 1, 2)
        made: torch.Tensor = self.proj((weight_BHPP @ value).transpose(1, 2).reshape(x_BPW.shape))
        return made


class DeepVitLayer(nn.Module):
    """Attention and feed-forward, each after a norm and with a residual connection."""

    def __init__(self, sizes: DeepVitSizes) -> None:
        super().__init__()
        self.norm1, self.attn = nn.LayerNorm(sizes.width), ReAttention(sizes)
        self.norm2 = nn.LayerNorm(sizes.width)
        self.fc1, self.fc2 = nn.Linear(sizes.width, sizes.feed_forward), nn.Linear(sizes.feed_forward, sizes.width)

    def forward(self, x_BPW: torch.Tensor) -> torch.Tensor:
        x_BPW = x_BPW + self.attn(self.norm1(x_BPW))
        made: torch.Tensor = x_BPW + self.fc2(F.gelu(self.fc1(self.norm2(x_BPW))))
        return made


class DeepVit(nn.Module):
    """(image [B, C, Y, X], label [B]) → (loss [], logits [B, K]); the image alone → the logits."""

    def __init__(self, **sizes: SizeValue) -> None:
        super().__init__()
        known = DeepVitSizes(**sizes)  # type: ignore[arg-type]
        patches = (known.image_size // known.patch_size) ** 2
        self.patch_embed = nn.Conv2d(known.channels, known.width, known.patch_size, known.patch_size)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, known.width))
        self.pos_embed = nn.Parameter(torch.zeros(1, patches + 1, known.width))
        self.blocks = nn.ModuleList(DeepVitLayer(known) for _ in range(known.layers))
        self.norm = nn.LayerNorm(known.width)
        self.head = nn.Linear(known.width, known.num_classes)
        for parameter in (self.cls_token, self.pos_embed):
            nn.init.trunc_normal_(parameter, std=0.02)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def forward(
        self, image: torch.Tensor, label: torch.Tensor | None = None
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        patches_BPW = self.patch_embed(image).flatten(2).transpose(1, 2)
        first = self.cls_token.expand(image.shape[0], 1, patches_BPW.shape[-1])
        x_BPW = torch.cat([first, patches_BPW], 1) + self.pos_embed
        for layer in self.blocks:
            x_BPW = layer(x_BPW)
        logits_BK: torch.Tensor = self.head(self.norm(x_BPW)[:, 0])
        return logits_BK if label is None else (F.cross_entropy(logits_BK, label), logits_BK)


def draw_digits(count: int, seed: int, **sizes: SizeValue) -> dict[str, NDArray[Any]]:
    """Return the bundled digits; see ``digit_images``."""
    return generate(count, seed, **sizes)


_PUBLISHED: dict[str, SizeValue] = {
    "image_size": 224, "channels": 3, "patch_size": 16, "num_classes": 1000, "width": 384, "heads": 12,
    "feed_forward": 1152,
}  # fmt: skip

model(
    name="deepvit",
    title="DeepViT",
    task="image-classification",
    licence="Apache-2.0",
    source="Zhou et al., DeepViT: Towards Deeper Vision Transformer (2021), arXiv 2103.11886",
    sizes=asdict(DeepVitSizes()),
    make_inputs=make_inputs,
    # Published as 24.5 and 36.3 million; width, heads and feed-forward are our choice that gives these counts.
    variants={
        "16": Variant(_PUBLISHED | {"layers": 16}, 24_408_040),
        "24": Variant(_PUBLISHED | {"layers": 24}, 36_233_512),
    },
    generate=draw_digits,
    is_drawn_from_a_set=True,
)(DeepVit)
