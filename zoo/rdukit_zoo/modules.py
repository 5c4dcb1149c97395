"""Plain torch modules without a program, for comparisons and tests; they need only torch.

``PlainGpt2``: head tied to the word embedding, no dropout. Source: Radford and others, Language Models are Unsupervised
Multitask Learners (2019). ``Perceptron``, ``LstmForecaster``, ``ConvForecaster``, ``PlainLeNet``: small training
models, whose forward returns the loss []. ``Unet``: segmentation with batch norms. ``PlainVit``: a vision transformer,
pre-norm, with a class token.

Axes: B batch, L length or window, D width, C channels, Y and X rows and columns, N image side, P patches and class
token, K classes.
"""

from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn import functional


class Block(nn.Module):
    """A layer: attention and a perceptron, each after a norm and added to its input. [B, L, D] → same."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x_BLD: torch.Tensor) -> torch.Tensor:
        batch, length, width = x_BLD.shape
        parts = self.attention(self.norm_1(x_BLD)).split(width, dim=2)
        query, key, value = (part.view(batch, length, self.heads, -1).transpose(1, 2) for part in parts)
        mixed: torch.Tensor = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x_BLD = x_BLD + self.projection(mixed.transpose(1, 2).reshape(batch, length, width))
        changed: torch.Tensor = self.down(functional.gelu(self.up(self.norm_2(x_BLD)), approximate="tanh"))
        return x_BLD + changed


class PlainGpt2(nn.Module):
    """(tokens [B, L], targets [B, L]) → mean cross entropy []; without targets logits [B, L, words].

    By default GPT-2 small, 124 million parameters.
    """

    def __init__(
        self, layers: int = 12, width: int = 768, heads: int = 12, words: int = 50257, length: int = 1024
    ) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.layers = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)
        for embedding in (self.words, self.places):
            nn.init.normal_(embedding.weight, std=0.02)
        self.head.weight = self.words.weight

    def forward(self, tokens_BL: torch.Tensor, targets_BL: torch.Tensor | None = None) -> torch.Tensor:
        x_BLD = self.words(tokens_BL) + self.places(torch.arange(tokens_BL.shape[1]))
        for layer in self.layers:
            x_BLD = layer(x_BLD)
        logits: torch.Tensor = self.head(self.norm(x_BLD))
        if targets_BL is None:
            return logits
        return functional.cross_entropy(logits.flatten(0, 1), targets_BL.flatten())


class Perceptron(nn.Module):
    """(inputs [B, features], targets [B]) → cross entropy. Linear layers with layer norms between them."""

    def __init__(self, features: int = 784, width: int = 512, classes: int = 10, layers: int = 2) -> None:
        super().__init__()
        self.inner = nn.ModuleList(nn.Linear(width if i else features, width) for i in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers))
        self.last = nn.Linear(width, classes)

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        for linear, norm in zip(self.inner, self.norms, strict=True):
            inputs = torch.tanh(norm(linear(inputs)))
        return functional.cross_entropy(self.last(inputs), targets)


class LstmForecaster(nn.Module):
    """(window [B, L, C], targets [B, horizon]) → mean squared error. Two LSTM layers; the last state forecasts."""

    def __init__(self, channels: int = 8, width: int = 64, layers: int = 2, horizon: int = 12) -> None:
        super().__init__()
        self.lstm = nn.LSTM(channels, width, layers, batch_first=True)
        self.head = nn.Linear(width, horizon)

    def forward(self, window: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        states, _ = self.lstm(window)
        return functional.mse_loss(self.head(states[:, -1]), targets)


class ConvForecaster(nn.Module):
    """(window [B, C, L], targets [B, horizon]) → mean squared error. Three dilated 1-d convolutions, mean over time."""

    def __init__(self, channels: int = 8, width: int = 64, horizon: int = 12) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv1d(channels, width, 3, padding=1), nn.ReLU(),
            nn.Conv1d(width, width, 3, padding=2, dilation=2), nn.ReLU(),
            nn.Conv1d(width, width, 3, padding=4, dilation=4), nn.ReLU(),
        )  # fmt: skip
        self.head = nn.Linear(width, horizon)

    def forward(self, window: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return functional.mse_loss(self.head(self.layers(window).mean(dim=2)), targets)


class PlainLeNet(nn.Module):
    """(image [B, 1, 28, 28], targets [B]) → cross entropy.

    Source: LeCun and others, Gradient-Based Learning Applied to Document Recognition (1998), with ReLU and max pooling.
    """

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.conv_1, self.conv_2 = nn.Conv2d(1, 6, 5, padding=2), nn.Conv2d(6, 16, 5)
        self.fc_1, self.fc_2, self.fc_3 = nn.Linear(400, 120), nn.Linear(120, 84), nn.Linear(84, classes)

    def forward(self, image: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = functional.max_pool2d(torch.relu(self.conv_1(image)), 2)
        x = functional.max_pool2d(torch.relu(self.conv_2(x)), 2)
        x = torch.relu(self.fc_1(x.flatten(1)))
        return functional.cross_entropy(self.fc_3(torch.relu(self.fc_2(x))), targets)


@dataclass(frozen=True, slots=True)
class UnetSizes:
    """Sizes of a U-Net: ``width`` channels at full size, twice as many at each of ``depth`` halvings."""

    image: int = 256
    width: int = 32
    depth: int = 4
    channels: int = 3
    classes: int = 2


def make_block(inputs: int, outputs: int) -> nn.Sequential:
    """Build two 3x3 convolutions, each with a batch norm and a ReLU."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
        nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    )


class Unet(nn.Module):
    """A module: images [B, C, Y, X] → logits [B, K, Y, X]; rows and columns are multiples of ``2 ** depth``."""

    def __init__(self, sizes: UnetSizes) -> None:
        super().__init__()
        widths = [sizes.width * 2**level for level in range(sizes.depth + 1)]
        self.first = make_block(sizes.channels, widths[0])
        self.pool = nn.MaxPool2d(2)
        self.down = nn.ModuleList(make_block(fine, coarse) for fine, coarse in pairwise(widths))
        pairs = list(pairwise(widths))[::-1]
        self.up = nn.ModuleList(nn.ConvTranspose2d(coarse, fine, 2, 2) for fine, coarse in pairs)
        self.join = nn.ModuleList(make_block(2 * fine, fine) for fine, _ in pairs)
        self.last = nn.Conv2d(widths[0], sizes.classes, 1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        kept = [self.first(image)]
        for block in self.down:
            kept.append(block(self.pool(kept[-1])))
        x_BCYX = kept.pop()
        for up, join in zip(self.up, self.join, strict=True):
            x_BCYX = join(torch.cat([kept.pop(), up(x_BCYX)], 1))
        logits: torch.Tensor = self.last(x_BCYX)
        return logits


def vary_statistics(model: nn.Module) -> None:
    """Give batch norms means, variances, weights and biases other than 0 and 1, as training would."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert module.running_mean is not None and module.running_var is not None
            nn.init.normal_(module.running_mean, std=0.1)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, std=0.1)


EPSILON = 1e-6


@dataclass(frozen=True, slots=True)
class PlainVitSizes:
    """Sizes of a vision transformer; the defaults are ViT-S/16 at 224 pixels."""

    image: int = 224
    patch: int = 16
    width: int = 384
    layers: int = 12
    heads: int = 6
    feed_forward: int = 1536
    classes: int = 1000


class EncoderLayer(nn.Module):
    """Self-attention and a GELU network, each after a norm, with a residual connection."""

    def __init__(self, sizes: PlainVitSizes) -> None:
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


class PlainVit(nn.Module):
    """A module: images [B, 3, N, N] → logits [B, K]."""

    def __init__(self, sizes: PlainVitSizes) -> None:
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
