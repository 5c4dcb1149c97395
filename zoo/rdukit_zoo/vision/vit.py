"""Vision transformer: an image as patches, a class token, an encoder with a norm before each part.

Source: Dosovitskiy et al., An Image is Worth 16x16 Words (2021). Parameters are named as Hugging Face writes them to
disk.

Axes: B batch, P patches and class token, W width of the model, K classes.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import nn

import sambaflow.samba as samba
from rdukit.errors import InvalidArgument
from rdukit_zoo.checkpoints.hub_format import HubFormat, require_value
from rdukit_zoo.datasets.digits import digit_images
from rdukit_zoo.language.attention import LayerList, split_heads
from rdukit_zoo.registry import SizeValue, Variant, model


@dataclass(frozen=True, slots=True)
class VitSizes:
    """Sizes of a vision transformer; the defaults train on digits within minutes on a processor.

    Raises:
        InvalidArgument: the sizes do not fit together.
    """

    image_size: int = 28
    channels: int = 1
    patch_size: int = 7
    width: int = 64
    layers: int = 3
    heads: int = 4
    feed_forward: int = 128
    num_classes: int = 10
    epsilon: float = 1e-12

    def __post_init__(self) -> None:
        if self.width % self.heads or self.image_size % self.patch_size:
            raise InvalidArgument(
                f"heads {self.heads} must divide width {self.width}, patch_size {self.patch_size} must divide "
                f"image_size {self.image_size}"
            )

    @property
    def patches(self) -> int:
        """Patches of an image."""
        return (self.image_size // self.patch_size) ** 2


class VitEmbeddings(nn.Module):
    """Patches by a convolution, behind a class token, with learned positions: [B, P, W]."""

    def __init__(self, sizes: VitSizes) -> None:
        super().__init__()
        self.cls_token = nn.Parameter(torch.zeros(1, 1, sizes.width))
        self.position_embeddings = nn.Parameter(torch.zeros(1, sizes.patches + 1, sizes.width))
        patches = nn.Conv2d(sizes.channels, sizes.width, sizes.patch_size, sizes.patch_size)
        self.patch_embeddings = nn.ModuleDict({"projection": patches})
        for parameter in (self.cls_token, self.position_embeddings):
            nn.init.normal_(parameter, std=0.02)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        patches_BPW = self.patch_embeddings["projection"](image).flatten(2).transpose(1, 2)
        first = self.cls_token.expand(image.shape[0], 1, patches_BPW.shape[-1])
        embedded: torch.Tensor = torch.cat([first, patches_BPW], 1) + self.position_embeddings
        return embedded


class VitAttention(nn.Module):
    """Self-attention: [B, P, W] → same."""

    def __init__(self, sizes: VitSizes) -> None:
        super().__init__()
        self.heads = sizes.heads
        parts = {name: nn.Linear(sizes.width, sizes.width) for name in ("query", "key", "value")}
        self.attention = nn.ModuleDict(parts)
        self.output = nn.ModuleDict({"dense": nn.Linear(sizes.width, sizes.width)})

    def forward(self, x_BPW: torch.Tensor) -> torch.Tensor:
        query, key, value = (split_heads(self.attention[name](x_BPW), self.heads) for name in ("query", "key", "value"))
        mixed = F.scaled_dot_product_attention(query, key, value).transpose(1, 2).reshape(x_BPW.shape)
        made: torch.Tensor = self.output["dense"](mixed)
        return made


class VitLayer(nn.Module):
    """Attention and feed-forward, each after a norm and added to its input."""

    def __init__(self, sizes: VitSizes) -> None:
        super().__init__()
        self.layernorm_before = nn.LayerNorm(sizes.width, sizes.epsilon)
        self.attention = VitAttention(sizes)
        self.layernorm_after = nn.LayerNorm(sizes.width, sizes.epsilon)
        self.intermediate = nn.ModuleDict({"dense": nn.Linear(sizes.width, sizes.feed_forward)})
        self.output = nn.ModuleDict({"dense": nn.Linear(sizes.feed_forward, sizes.width)})

    def forward(self, x_BPW: torch.Tensor) -> torch.Tensor:
        x_BPW = x_BPW + self.attention(self.layernorm_before(x_BPW))
        inner = F.gelu(self.intermediate["dense"](self.layernorm_after(x_BPW)))
        made: torch.Tensor = x_BPW + self.output["dense"](inner)
        return made


class VitBody(nn.Module):
    """Image [B, C, Y, X] → states [B, P, W] after the final norm."""

    def __init__(self, sizes: VitSizes) -> None:
        super().__init__()
        self.embeddings = VitEmbeddings(sizes)
        self.encoder = LayerList(VitLayer(sizes) for _ in range(sizes.layers))
        self.layernorm = nn.LayerNorm(sizes.width, sizes.epsilon)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x_BPW = self.embeddings(image)
        for layer in self.encoder.layer:
            x_BPW = layer(x_BPW)
        states_BPW: torch.Tensor = self.layernorm(x_BPW)
        return states_BPW


class Vit(nn.Module):
    """(image [B, C, Y, X], label [B]) → (loss [], logits [B, K]); the image alone → the logits."""

    def __init__(self, **sizes: SizeValue) -> None:
        super().__init__()
        known = VitSizes(**sizes)  # type: ignore[arg-type]
        self.vit = VitBody(known)
        self.classifier = nn.Linear(known.width, known.num_classes)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)

    def forward(
        self, image: torch.Tensor, label: torch.Tensor | None = None
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        logits_BK: torch.Tensor = self.classifier(self.vit(image)[:, 0])
        return logits_BK if label is None else (F.cross_entropy(logits_BK, label), logits_BK)


def make_inputs(
    batch_size: int, image_size: int, channels: int, num_classes: int, **sizes: SizeValue
) -> tuple[samba.SambaTensor, ...]:
    """Return dummy inputs: ``image`` [batch, C, Y, X] and ``label`` [batch]."""
    image = samba.randn(batch_size, channels, image_size, image_size, name="image", batch_dim=0)
    return image, samba.randint(num_classes, (batch_size,), name="label", batch_dim=0)


def generate(count: int, seed: int, **sizes: SizeValue) -> dict[str, NDArray[Any]]:
    """Return the bundled digits; see ``digit_images``."""
    return digit_images(count, seed, int(sizes["image_size"]), int(sizes["channels"]))


def sizes_of_config(config: Mapping[str, Any]) -> dict[str, SizeValue]:
    """Return the sizes that a Hugging Face ``config.json`` names.

    Raises:
        InvalidArgument: a value that this architecture does not have.
    """
    require_value(config, "hidden_act", "gelu")
    require_value(config, "qkv_bias", True)
    return asdict(
        VitSizes(
            image_size=int(config["image_size"]), channels=int(config.get("num_channels", 3)),
            patch_size=int(config["patch_size"]), width=int(config["hidden_size"]),
            layers=int(config["num_hidden_layers"]), heads=int(config["num_attention_heads"]),
            feed_forward=int(config["intermediate_size"]), num_classes=len(config.get("id2label") or (0, 1)),
            epsilon=float(config.get("layer_norm_eps", 1e-12)),
        )
    )  # fmt: skip


def config_of_sizes(sizes: Mapping[str, SizeValue]) -> dict[str, Any]:
    """Return the ``config.json`` of a model of these sizes."""
    known = VitSizes(**sizes)  # type: ignore[arg-type]
    return {
        "architectures": ["ViTForImageClassification"], "model_type": "vit", "image_size": known.image_size,
        "num_channels": known.channels, "patch_size": known.patch_size, "hidden_size": known.width,
        "num_hidden_layers": known.layers, "num_attention_heads": known.heads,
        "intermediate_size": known.feed_forward, "layer_norm_eps": known.epsilon, "hidden_act": "gelu",
        "qkv_bias": True, "id2label": {str(k): f"LABEL_{k}" for k in range(known.num_classes)},
        "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
    }  # fmt: skip


_PUBLISHED: dict[str, SizeValue] = {"image_size": 224, "channels": 3, "patch_size": 16, "num_classes": 1000}

model(
    name="vit",
    title="Vision transformer",
    task="image-classification",
    licence="Apache-2.0",
    source="Dosovitskiy et al., An Image is Worth 16x16 Words (2021), arXiv 2010.11929",
    sizes=asdict(VitSizes()),
    make_inputs=make_inputs,
    variants={
        "b16": Variant(_PUBLISHED | {"width": 768, "layers": 12, "heads": 12, "feed_forward": 3072}, 86_567_656),
        "l16": Variant(_PUBLISHED | {"width": 1024, "layers": 24, "heads": 16, "feed_forward": 4096}, 304_326_632),
    },
    hub=HubFormat(
        architectures=("ViTForImageClassification",), sizes_of_config=sizes_of_config,
        config_of_sizes=config_of_sizes, prefix="vit.", ignored=(r"pooler\.dense\.",),
    ),
    generate=generate,
    is_drawn_from_a_set=True,
)(Vit)  # fmt: skip
