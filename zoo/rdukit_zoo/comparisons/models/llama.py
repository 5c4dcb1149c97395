"""A Llama with a static key and value cache, and the same weights under ``prefill`` and ``decode``.

Axes: B batch (1), T tokens of a call, S positions of the cache, H heads, D width of a head, C width of the model.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

#: Of the norms, and of llama.cpp's by default for this architecture.
EPSILON = 1e-5
ROTARY_BASE = 10000.0


@dataclass(frozen=True, slots=True)
class LlamaSizes:
    """Sizes of a Llama; the defaults have 110 million parameters, the embedding counted once."""

    width: int = 768
    layers: int = 12
    heads: int = 12
    feed_forward: int = 2048
    vocabulary: int = 32000
    #: Length of the cache.
    positions: int = 512
    #: Length of the prompt that ``prefill`` is compiled for.
    prompt: int = 128

    @property
    def head_width(self) -> int:
        """Width of a head, in elements."""
        return self.width // self.heads


class RootMeanSquareNorm(nn.Module):
    """Divides by the root of the mean square over the last axis, in f32; a weight per element."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, (x.shape[-1],), self.weight, EPSILON)


def turn(x_BHTD: torch.Tensor, cosine_TD: torch.Tensor, sine_TD: torch.Tensor) -> torch.Tensor:
    """Rotary embedding over the halves of D."""
    first, second = x_BHTD.chunk(2, -1)
    return x_BHTD * cosine_TD + torch.cat([-second, first], -1) * sine_TD


class Attention(nn.Module):
    """Self-attention; keys and values of the call's positions are written to the layer's cache, in place."""

    def __init__(self, sizes: LlamaSizes) -> None:
        super().__init__()
        self.heads = sizes.heads
        self.query, self.key, self.value, self.output = (
            nn.Linear(sizes.width, sizes.width, bias=False) for _ in range(4)
        )
        shape = (1, sizes.heads, sizes.positions, sizes.head_width)
        self.register_buffer("keys_BHSD", torch.zeros(shape))
        self.register_buffer("values_BHSD", torch.zeros(shape))
        self.keys_BHSD: torch.Tensor
        self.values_BHSD: torch.Tensor

    def forward(
        self, x_BTC: torch.Tensor, cosine_TD: torch.Tensor, sine_TD: torch.Tensor, position: torch.Tensor | None,
        mask_TS: torch.Tensor | None,
    ) -> torch.Tensor:  # fmt: skip
        batch, count, width = x_BTC.shape

        def split(x: torch.Tensor) -> torch.Tensor:
            return x.view(batch, count, self.heads, -1).transpose(1, 2)

        query = turn(split(self.query(x_BTC)), cosine_TD, sine_TD)
        key = turn(split(self.key(x_BTC)), cosine_TD, sine_TD)
        value = split(self.value(x_BTC))
        if position is None:
            self.keys_BHSD[:, :, :count] = key
            self.values_BHSD[:, :, :count] = value
            attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        else:
            self.keys_BHSD.index_copy_(2, position, key)
            self.values_BHSD.index_copy_(2, position, value)
            attended = F.scaled_dot_product_attention(query, self.keys_BHSD, self.values_BHSD, attn_mask=mask_TS)
        mixed: torch.Tensor = self.output(attended.transpose(1, 2).reshape(batch, count, width))
        return mixed


class FeedForward(nn.Module):
    """The gated feed-forward part of a layer."""

    def __init__(self, sizes: LlamaSizes) -> None:
        super().__init__()
        self.gate = nn.Linear(sizes.width, sizes.feed_forward, bias=False)
        self.up = nn.Linear(sizes.width, sizes.feed_forward, bias=False)
        self.down = nn.Linear(sizes.feed_forward, sizes.width, bias=False)

    def forward(self, x_BTC: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.down(F.silu(self.gate(x_BTC)) * self.up(x_BTC))
        return made


class Layer(nn.Module):
    """Attention and feed-forward, each after a norm and added to what came in."""

    def __init__(self, sizes: LlamaSizes) -> None:
        super().__init__()
        self.attention_norm, self.attention = RootMeanSquareNorm(sizes.width), Attention(sizes)
        self.feed_forward_norm, self.feed_forward = RootMeanSquareNorm(sizes.width), FeedForward(sizes)

    def forward(
        self, x_BTC: torch.Tensor, cosine_TD: torch.Tensor, sine_TD: torch.Tensor, position: torch.Tensor | None,
        mask_TS: torch.Tensor | None,
    ) -> torch.Tensor:  # fmt: skip
        x_BTC = x_BTC + self.attention(self.attention_norm(x_BTC), cosine_TD, sine_TD, position, mask_TS)
        made: torch.Tensor = x_BTC + self.feed_forward(self.feed_forward_norm(x_BTC))
        return made


class Llama(nn.Module):
    """Logits [1, vocabulary] of the last of ``tokens`` [1, T]; their keys and values go to the caches.

    Without ``position`` the tokens are the first T of a text, a prefill. With ``position`` [1] there is one token
    there, a decode step, which attends to the cache up to itself. The head is the embedding's weight.
    """

    def __init__(self, sizes: LlamaSizes) -> None:
        super().__init__()
        self.embedding = nn.Embedding(sizes.vocabulary, sizes.width)
        self.layers = nn.ModuleList(Layer(sizes) for _ in range(sizes.layers))
        self.norm = RootMeanSquareNorm(sizes.width)
        self.head = nn.Linear(sizes.width, sizes.vocabulary, bias=False)
        self.head.weight = self.embedding.weight
        frequencies = ROTARY_BASE ** -(torch.arange(0, sizes.head_width, 2).float() / sizes.head_width)
        angles_SD = torch.outer(torch.arange(sizes.positions).float(), frequencies).repeat(1, 2)
        self.register_buffer("cosine_SD", angles_SD.cos())
        self.register_buffer("sine_SD", angles_SD.sin())
        self.cosine_SD: torch.Tensor
        self.sine_SD: torch.Tensor
        for name, parameter in self.named_parameters():
            if not name.endswith("norm.weight"):
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens: torch.Tensor, position: torch.Tensor | None = None) -> torch.Tensor:
        x_BTC = self.embedding(tokens)
        if position is None:
            count = tokens.shape[1]
            cosine_TD, sine_TD, mask_TS = self.cosine_SD[:count], self.sine_SD[:count], None
        else:
            cosine_TD = self.cosine_SD.index_select(0, position)
            sine_TD = self.sine_SD.index_select(0, position)
            mask_TS = (torch.arange(self.cosine_SD.shape[0]) <= position).view(1, -1)
        for layer in self.layers:
            x_BTC = layer(x_BTC, cosine_TD, sine_TD, position, mask_TS)
        logits: torch.Tensor = self.head(self.norm(x_BTC[:, -1]))
        return logits


@torch.no_grad()
def generate_by_recomputing(model: Llama, prompt: torch.Tensor, count: int) -> list[int]:
    """Greedy continuation of ``prompt`` [1, T] by plain torch that computes the whole text again for every token.

    No cache is read, so that it can be held against whoever reads one.
    """
    text = prompt
    for _ in range(count):
        text = torch.cat([text, model(text).argmax(-1, keepdim=True)], 1)
    return [int(token) for token in text[0, prompt.shape[1] :]]
