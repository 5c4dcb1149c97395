"""A Llama: root-mean-square norms, rotary positions, gated feed-forward, grouped queries, a static cache.

One set of weights has two programs: ``LlamaTraining`` computes the loss of whole texts and keeps no cache;
``LlamaServing`` reads a padded prompt and then one token at a time, with keys and values in buffers of the device.

Axes: B batch, T tokens of a call, S positions of the cache, H heads, G heads of keys and values, D width of a head,
C width of the model, V vocabulary.
"""

from dataclasses import dataclass
from typing import Final

import torch
import torch.nn.functional as F
from torch import nn

import sambaflow.samba as samba
from rdukit.errors import InvalidArgument
from rdukit_zoo.registry import TextServing, model

#: Of the norms, and of llama.cpp's by default for this architecture.
EPSILON: Final = 1e-5
ROTARY_BASE: Final = 10000.0
#: A label that counts in no loss, as torch's cross entropy has it by default.
IGNORED: Final = -100


@dataclass(frozen=True, slots=True)
class LlamaSizes:
    """Sizes of a Llama; the defaults have 110 million parameters, the embedding counted once.

    Raises:
        InvalidArgument: they do not fit together.
    """

    width: int = 768
    layers: int = 12
    heads: int = 12
    feed_forward: int = 2048
    vocabulary: int = 32000
    #: Length of the cache.
    positions: int = 512
    #: Length of the prompt that ``prefill`` is compiled for.
    prompt: int = 128
    #: Heads of keys and values, each read by as many query heads; 0 for as many as there are query heads.
    key_value_heads: int = 0

    def __post_init__(self) -> None:
        groups = self.groups
        if self.width % self.heads or self.head_width % 2:
            raise InvalidArgument(
                f"width {self.width} is not an even number of elements for each of {self.heads} heads"
            )
        if self.heads % groups:
            raise InvalidArgument(f"key_value_heads {groups} does not divide heads {self.heads}")
        if not 2 <= self.prompt <= self.positions:
            raise InvalidArgument(f"the prompt's length is {self.prompt}; legal: 2 <= x <= {self.positions} (context)")

    @property
    def head_width(self) -> int:
        """Width of a head, in elements."""
        return self.width // self.heads

    @property
    def groups(self) -> int:
        """Heads of keys and values."""
        return self.key_value_heads or self.heads


class RootMeanSquareNorm(nn.Module):
    """Divides by the root of the mean square over the last axis, in f32; a weight per element."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, (x.shape[-1],), self.weight, EPSILON)


def turn(x_BHTD: torch.Tensor, cosine_TD: torch.Tensor, sine_TD: torch.Tensor) -> torch.Tensor:
    """Apply the rotary embedding over the halves of D."""
    first, second = x_BHTD.chunk(2, -1)
    return x_BHTD * cosine_TD + torch.cat([-second, first], -1) * sine_TD


class Attention(nn.Module):
    """Self-attention. With a cache, keys and values of the call's positions are written to it, in place."""

    def __init__(self, sizes: LlamaSizes, has_cache: bool) -> None:
        super().__init__()
        self.heads, self.groups = sizes.heads, sizes.groups
        self.query = nn.Linear(sizes.width, sizes.width, bias=False)
        self.key = nn.Linear(sizes.width, sizes.groups * sizes.head_width, bias=False)
        self.value = nn.Linear(sizes.width, sizes.groups * sizes.head_width, bias=False)
        self.output = nn.Linear(sizes.width, sizes.width, bias=False)
        self.has_cache = has_cache
        if has_cache:
            shape = (1, sizes.groups, sizes.positions, sizes.head_width)
            self.register_buffer("keys_BHSD", torch.zeros(shape), persistent=False)
            self.register_buffer("values_BHSD", torch.zeros(shape), persistent=False)
        self.keys_BHSD: torch.Tensor
        self.values_BHSD: torch.Tensor

    def forward(
        self, x_BTC: torch.Tensor, cosine_TD: torch.Tensor, sine_TD: torch.Tensor, position: torch.Tensor | None,
        mask_TS: torch.Tensor | None,
    ) -> torch.Tensor:  # fmt: skip
        batch, count, width = x_BTC.shape

        def split(x: torch.Tensor, heads: int) -> torch.Tensor:
            return x.view(batch, count, heads, -1).transpose(1, 2)

        query = turn(split(self.query(x_BTC), self.heads), cosine_TD, sine_TD)
        key = turn(split(self.key(x_BTC), self.groups), cosine_TD, sine_TD)
        value = split(self.value(x_BTC), self.groups)
        if position is None:
            if self.has_cache:
                self.keys_BHSD[:, :, :count] = key
                self.values_BHSD[:, :, :count] = value
            attended = F.scaled_dot_product_attention(query, self._shared(key), self._shared(value), is_causal=True)
        else:
            self.keys_BHSD.index_copy_(2, position, key)
            self.values_BHSD.index_copy_(2, position, value)
            attended = F.scaled_dot_product_attention(
                query, self._shared(self.keys_BHSD), self._shared(self.values_BHSD), attn_mask=mask_TS
            )
        mixed: torch.Tensor = self.output(attended.transpose(1, 2).reshape(batch, count, width))
        return mixed

    def _shared(self, x_BGSD: torch.Tensor) -> torch.Tensor:
        """Repeat each head of keys or values as often as query heads read it: [B, H, S, D]."""
        if self.groups == self.heads:
            return x_BGSD
        batch, groups, count, width = x_BGSD.shape
        repeated = x_BGSD[:, :, None].expand(batch, groups, self.heads // groups, count, width)
        return repeated.reshape(batch, self.heads, count, width)


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


class LlamaLayer(nn.Module):
    """Attention and feed-forward, each after a norm and added to what came in."""

    def __init__(self, sizes: LlamaSizes, has_cache: bool) -> None:
        super().__init__()
        self.attention_norm, self.attention = RootMeanSquareNorm(sizes.width), Attention(sizes, has_cache)
        self.feed_forward_norm, self.feed_forward = RootMeanSquareNorm(sizes.width), FeedForward(sizes)

    def forward(
        self, x_BTC: torch.Tensor, cosine_TD: torch.Tensor, sine_TD: torch.Tensor, position: torch.Tensor | None,
        mask_TS: torch.Tensor | None,
    ) -> torch.Tensor:  # fmt: skip
        x_BTC = x_BTC + self.attention(self.attention_norm(x_BTC), cosine_TD, sine_TD, position, mask_TS)
        made: torch.Tensor = x_BTC + self.feed_forward(self.feed_forward_norm(x_BTC))
        return made


class Llama(nn.Module):
    """A module that gives logits [1, V] of the last of ``tokens`` [1, T]; their keys and values go to the caches.

    Without ``position`` the tokens are the first T of a text, a prefill. With ``position`` [1] there is one token
    there, a decode step, which attends to the cache up to itself. The head is the embedding's weight.
    """

    def __init__(self, sizes: LlamaSizes, has_cache: bool = True) -> None:
        super().__init__()
        self.embedding = nn.Embedding(sizes.vocabulary, sizes.width)
        self.layers = nn.ModuleList(LlamaLayer(sizes, has_cache) for _ in range(sizes.layers))
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
        return self.logits_of(self.read(tokens, position)[:, -1])

    def read(self, tokens: torch.Tensor, position: torch.Tensor | None = None) -> torch.Tensor:
        """Return the last layer's states of each token: [B, T, C]."""
        x_BTC: torch.Tensor = self.embedding(tokens)
        if position is None:
            count = tokens.shape[1]
            cosine_TD, sine_TD, mask_TS = self.cosine_SD[:count], self.sine_SD[:count], None
        else:
            cosine_TD = self.cosine_SD.index_select(0, position)
            sine_TD = self.sine_SD.index_select(0, position)
            mask_TS = (torch.arange(self.cosine_SD.shape[0]) <= position).view(1, -1)
        for layer in self.layers:
            x_BTC = layer(x_BTC, cosine_TD, sine_TD, position, mask_TS)
        return x_BTC

    def logits_of(self, x: torch.Tensor) -> torch.Tensor:
        """Project states [..., C] to logits [..., V]."""
        logits: torch.Tensor = self.head(self.norm(x))
        return logits


class LlamaServing(Llama):
    """A module that gives logits [1, V] after a prompt, or after one more token.

    ``tokens`` [1, T > 1] is a prompt from position 0, padded behind; the answer is that of index ``at`` [1], its true
    last. What the padding leaves in the cache is overwritten before it is read. ``tokens`` [1, 1] is one token at
    position ``at`` [1]. With shares [1, T] of each token for ``at``, the answer is the text as a vector [1, C]: the
    normed last layer, added up by them.
    """

    def forward(self, tokens: torch.Tensor, at: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        if at.is_floating_point():
            vector: torch.Tensor = (self.norm(self.read(tokens)) * at.unsqueeze(-1)).sum(1)
            return vector
        if tokens.shape[1] == 1:
            return self.logits_of(self.read(tokens, at)[:, -1])
        return self.logits_of(self.read(tokens).index_select(1, at)[:, 0])


def make_inputs(batch_size: int, **sizes: int) -> tuple[samba.SambaTensor, ...]:
    """Return dummy inputs: ``tokens`` [batch, context] and ``labels`` [batch, context]."""
    shape = (batch_size, sizes["context_length"])
    return tuple(samba.randint(sizes["vocabulary"], shape, name=name, batch_dim=0) for name in ("tokens", "labels"))


def sizes_of(
    width: int, layers: int, heads: int, key_value_heads: int, feed_forward: int, vocabulary: int, context_length: int,
    prompt_length: int,
) -> LlamaSizes:  # fmt: skip
    """Return the registry's sizes as a value."""
    return LlamaSizes(width, layers, heads, feed_forward, vocabulary, context_length, prompt_length, key_value_heads)


def build_serving(**sizes: int) -> nn.Module:
    """Build the model with caches, for ``prefill`` and ``decode``."""
    return LlamaServing(sizes_of(**sizes))


@model(
    name="llama",
    title="Llama with grouped queries",
    task="language-modelling",
    licence="Apache-2.0",
    source="Touvron et al., LLaMA (2023); Ainslie et al., GQA (2023)",
    sizes={
        "width": 64, "layers": 2, "heads": 4, "key_value_heads": 2, "feed_forward": 192, "vocabulary": 512,
        "context_length": 128, "prompt_length": 64,
    },
    make_inputs=make_inputs,
    text_serving=TextServing(build_serving, context="context_length", prompt="prompt_length", vocabulary="vocabulary"),
)  # fmt: skip
class LlamaTraining(Llama):
    """The loss [] of predicting ``labels`` [B, T] from ``tokens`` [B, T], the mean over labels that are not -100."""

    def __init__(self, **sizes: int) -> None:
        super().__init__(sizes_of(**sizes), has_cache=False)

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        logits_BTV = self.logits_of(self.read(tokens))
        return F.cross_entropy(logits_BTV.flatten(0, 1), labels.flatten(), ignore_index=IGNORED)


@torch.no_grad()
def generate_by_recomputing(model: Llama, prompt: torch.Tensor, count: int) -> list[int]:
    """Greedy continuation of ``prompt`` [1, T] by plain torch that computes the whole text again for every token.

    No cache is read, so that it can be held against whoever reads one.
    """
    text = prompt
    for _ in range(count):
        text = torch.cat([text, model.logits_of(model.read(text)[:, -1]).argmax(-1, keepdim=True)], 1)
    return [int(token) for token in text[0, prompt.shape[1] :]]
