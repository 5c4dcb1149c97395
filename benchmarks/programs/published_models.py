"""The published workloads as plain torch modules on the meta device: shapes only, no weights.

Written for shapes and operators alone; nothing here is trained or run. Attention is written out unless ``fused``.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Attention(nn.Module):
    """Self-attention with one projection for query, key and value."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.heads, self.dropout = heads, nn.Dropout(0.1)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        batch, length, width = x.shape
        head = width // self.heads
        q, k, v = (p.view(batch, length, self.heads, head).transpose(1, 2) for p in self.qkv(x).split(width, dim=-1))
        scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(head) + mask
        mixed = torch.matmul(self.dropout(torch.softmax(scores, dim=-1)), v)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    """A transformer layer; norms come first in GPT and last in BERT."""

    def __init__(self, width: int, heads: int, norm_first: bool) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout, self.norm_first = nn.Dropout(0.1), norm_first

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        if self.norm_first:
            x = x + self.dropout(self.attention(self.norm1(x), mask))
            return x + self.dropout(self.down(F.gelu(self.up(self.norm2(x)))))
        x = self.norm1(x + self.dropout(self.attention(x, mask)))
        return self.norm2(x + self.dropout(self.down(F.gelu(self.up(x)))))


class Gpt(nn.Module):
    """GPT-2 with its loss; the head shares the embedding's weight."""

    def __init__(self, layers: int, width: int, heads: int, length: int, vocabulary: int = 50257) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(vocabulary, width), nn.Parameter(torch.zeros(1, length, width))
        self.blocks = nn.ModuleList(Block(width, heads, True) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.words.weight

    def forward(self, tokens: Tensor, mask: Tensor, labels: Tensor) -> Tensor:
        x = self.words(tokens) + self.places
        for block in self.blocks:
            x = block(x, mask)
        scores = self.head(self.norm(x))
        return F.cross_entropy(scores.view(-1, scores.shape[-1]), labels.view(-1))


class Bert(nn.Module):
    """BERT with both of its pretraining losses."""

    def __init__(self, layers: int, width: int, heads: int, length: int, vocabulary: int = 30522) -> None:
        super().__init__()
        self.words, self.kinds = nn.Embedding(vocabulary, width), nn.Embedding(2, width)
        self.places, self.norm = nn.Parameter(torch.zeros(1, length, width)), nn.LayerNorm(width)
        self.blocks = nn.ModuleList(Block(width, heads, False) for _ in range(layers))
        self.transform, self.transform_norm = nn.Linear(width, width), nn.LayerNorm(width)
        self.decoder, self.pooler, self.follows = (
            nn.Linear(width, vocabulary),
            nn.Linear(width, width),
            nn.Linear(width, 2),
        )
        self.decoder.weight = self.words.weight

    def forward(self, tokens: Tensor, kinds: Tensor, mask: Tensor, labels: Tensor, follows: Tensor) -> Tensor:
        x = self.norm(self.words(tokens) + self.kinds(kinds) + self.places)
        for block in self.blocks:
            x = block(x, mask)
        scores = self.decoder(self.transform_norm(F.gelu(self.transform(x))))
        loss = F.cross_entropy(scores.view(-1, scores.shape[-1]), labels.view(-1))
        return loss + F.cross_entropy(self.follows(torch.tanh(self.pooler(x[:, 0]))), follows)


class RmsNorm(nn.Module):
    """Root-mean-square norm in f32."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        y = x.float()
        return self.weight * (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-5)).to(x.dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding."""
    low, high = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-high, low], dim=-1) * sin


class LlamaLayer(nn.Module):
    """A socket's part of a layer: its share of the heads and of the feed-forward columns."""

    def __init__(self, width: int, heads: int, kv_heads: int, inner: int, head: int, fused: bool) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head, self.fused = heads, kv_heads, head, fused
        self.norm1, self.norm2 = RmsNorm(width), RmsNorm(width)
        self.q, self.k, self.v = (nn.Linear(width, n * head, bias=False) for n in (heads, kv_heads, kv_heads))
        self.out = nn.Linear(heads * head, width, bias=False)
        self.gate, self.up = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(
        self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor, cache: Sequence[Tensor] | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        batch, length, _ = x.shape
        y = self.norm1(x)
        q = rotate(self.q(y).view(batch, length, self.heads, self.head).transpose(1, 2), cos, sin)
        k = made_k = rotate(self.k(y).view(batch, length, self.kv_heads, self.head).transpose(1, 2), cos, sin)
        v = made_v = self.v(y).view(batch, length, self.kv_heads, self.head).transpose(1, 2)
        if cache is not None:
            k, v = (torch.cat([old[:, :, 1:], new], dim=2) for old, new in zip(cache, (k, v), strict=True))
        group, seen = self.heads // self.kv_heads, k.shape[2]
        if group > 1 and length == 1:  # queries that share keys are rows of one product
            q = q.reshape(batch, self.kv_heads, group, self.head)
        elif group > 1:
            wide = (batch, self.kv_heads, group, seen, self.head)
            k, v = (t[:, :, None].expand(wide).reshape(batch, self.heads, seen, self.head) for t in (k, v))
        if self.fused:
            mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        else:
            scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(self.head) + mask
            mixed = torch.matmul(torch.softmax(scores, -1), v)
        mixed = mixed.reshape(batch, self.heads, length, self.head).transpose(1, 2)
        x = x + self.out(mixed.reshape(batch, length, self.heads * self.head))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y)), made_k, made_v


class Llama(nn.Module):
    """Llama and Mistral: with ``labels`` their loss, else the last token's logits and the new keys and values."""

    def __init__(
        self, layers: int, width: int, heads: int, kv_heads: int, inner: int, vocabulary: int, shards: int, fused: bool
    ) -> None:
        super().__init__()
        part = (width, heads // shards, max(1, kv_heads // shards), inner // shards, width // heads, fused)
        self.words = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(LlamaLayer(*part) for _ in range(layers))
        self.norm, self.head = RmsNorm(width), nn.Linear(width, vocabulary // shards, bias=False)

    def forward(
        self, tokens: Tensor, cos: Tensor, sin: Tensor, mask: Tensor, labels: Tensor | None = None,
        caches: Sequence[Sequence[Tensor]] | None = None,
    ) -> Tensor | tuple[Tensor, ...]:  # fmt: skip
        x = self.words(tokens)
        kept: list[Tensor] = []
        for index, layer in enumerate(self.layers):
            x, *made = layer(x, cos, sin, mask, caches[index] if caches else None)
            kept += made
        scores = self.head(self.norm(x if labels is not None else x[:, -1:]))
        if labels is None:
            return (scores, *kept)
        return F.cross_entropy(scores.view(-1, scores.shape[-1]), labels.view(-1))


class UNet(nn.Module):
    """U-Net with its loss: four levels, two convolutions each."""

    def __init__(self, features: int, channels: int, classes: int = 2, depth: int = 4) -> None:
        super().__init__()
        sizes = [features << level for level in range(depth + 1)]
        self.down = nn.ModuleList(_two_convolutions(i, o) for i, o in zip([channels, *sizes[:-1]], sizes, strict=True))
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * n, n, 2, stride=2) for n in sizes[:-1])
        self.join = nn.ModuleList(_two_convolutions(2 * n, n) for n in sizes[:-1])
        self.last = nn.Conv2d(features, classes, 1)

    def forward(self, image: Tensor, labels: Tensor) -> Tensor:
        kept, x = [], image
        for step in self.down[:-1]:
            x = step(x)
            kept.append(x)
            x = F.max_pool2d(x, 2)
        x = self.down[-1](x)
        for up, join, saved in zip(reversed(self.up), reversed(self.join), reversed(kept), strict=True):
            x = join(torch.cat([up(x), saved], dim=1))
        return F.cross_entropy(self.last(x), labels)


def _two_convolutions(i: int, o: int) -> nn.Sequential:
    def half(i: int) -> list[nn.Module]:
        return [nn.Conv2d(i, o, 3, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU()]

    return nn.Sequential(*half(i), *half(o))
