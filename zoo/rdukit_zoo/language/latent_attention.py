"""Multi-head latent attention: keys and values of all heads are made of one latent vector and one rotated key a token.

Without a cache they are made of each token, and attended to. With a cache only the latent vector and the rotated key
are kept: the layer that makes keys and values is applied to queries and results instead, so that no head's keys or
values of earlier tokens are ever made. Source: DeepSeek-V2: A Strong, Economical, and Efficient Mixture-of-Experts
Language Model (2024).

Axes: B batch, T tokens of a call, S positions of the cache, H heads, N width of a head's unrotated key, R width that is
rotated, V width of a head's value, L width of the latent vector, C width of the model.
"""

import math
from typing import Final

import torch
import torch.nn.functional as F
from torch import nn

from rdukit.errors import InvalidArgument
from rdukit_zoo.language.attention import CachedAttention, CallContext, Places, rotate, split_heads
from rdukit_zoo.language.family_sizes import FamilySizes
from rdukit_zoo.language.norms import RootMeanSquare

#: Epsilon of the norms of latent vectors, independent of the configuration's for other norms.
_EPSILON: Final = 1e-6


class LatentCache(CachedAttention):
    """The cache of latent vectors and rotated keys, [R + 1 texts, S, L + R]; it has no keys and values of heads."""

    def __init__(self, width: int, positions: int, texts: int) -> None:
        super().__init__(1, 1, width, positions, 0)
        self.texts = texts
        if texts:
            self.register_buffer("keys", torch.zeros((texts + 1) * positions, width), persistent=False)

    def keep(self, latent_B1TD: torch.Tensor, places: Places) -> torch.Tensor:
        """Write the call's vectors, and return those of its texts: [B, 1, S, L + R]."""
        return self._kept(self.keys, latent_B1TD, places)

    def copy(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Copy the texts of the rows ``source`` [1] to the rows ``target`` [1]."""
        places = torch.arange(self.positions)
        copied = self.keys.index_select(0, source * self.positions + places)
        self.keys.index_copy_(0, target * self.positions + places, copied)


class LatentAttention(nn.Module):
    """Self-attention by a latent vector: [B, T, C] → [B, T, C]."""

    def __init__(self, sizes: FamilySizes, texts: int) -> None:
        super().__init__()
        sizes = sizes.filled()
        self.heads, self.plain, self.rotated = sizes.heads, sizes.head_width, sizes.rotated_width
        self.value, self.latent, self.is_interleaved = sizes.value_width, sizes.latent, sizes.of.is_interleaved
        self.scale = sizes.attention_scale * _stretched(sizes) ** 2
        queries = self.heads * (self.plain + self.rotated)
        has_bias = "qkv" in sizes.biased
        self.has_latent_queries = sizes.query_latent > 0
        if self.has_latent_queries:
            self.q_a_proj = nn.Linear(sizes.width, sizes.query_latent, bias=has_bias)
            self.q_a_layernorm = RootMeanSquare(sizes.query_latent, _EPSILON, adds_one=False)
            self.q_b_proj = nn.Linear(sizes.query_latent, queries, bias=False)
        else:
            self.q_proj = nn.Linear(sizes.width, queries, bias=False)
        self.kv_a_proj_with_mqa = nn.Linear(sizes.width, self.latent + self.rotated, bias=has_bias)
        self.kv_a_layernorm = RootMeanSquare(self.latent, _EPSILON, adds_one=False)
        self.kv_b_proj = nn.Linear(self.latent, self.heads * (self.plain + self.value), bias=False)
        self.o_proj = nn.Linear(self.heads * self.value, sizes.width, bias="output" in sizes.biased)
        self.attention = LatentCache(self.latent + self.rotated, sizes.context_length, texts)

    def forward(self, x_BTC: torch.Tensor, call: CallContext) -> torch.Tensor:
        assert call.rotary is not None
        inner = self.q_a_layernorm(self.q_a_proj(x_BTC)) if self.has_latent_queries else None
        query = split_heads(self.q_proj(x_BTC) if inner is None else self.q_b_proj(inner), self.heads)
        plain_BHTN, turned_BHTR = torch.split(query, [self.plain, self.rotated], -1)
        turned_BHTR = rotate(turned_BHTR, *call.rotary, self.is_interleaved)
        latent_BTL, key_BTR = torch.split(self.kv_a_proj_with_mqa(x_BTC), [self.latent, self.rotated], -1)
        latent_B1TL = self.kv_a_layernorm(latent_BTL).unsqueeze(1)
        key_B1TR = rotate(key_BTR.unsqueeze(1), *call.rotary, self.is_interleaved)
        if call.places is None:
            attended = self._of_heads(plain_BHTN, turned_BHTR, latent_B1TL, key_B1TR, call.mask)
        else:
            kept = self.attention.keep(torch.cat([latent_B1TL, key_B1TR], -1), call.places)
            attended = self._of_latents(plain_BHTN, turned_BHTR, kept, call.mask)
        mixed: torch.Tensor = self.o_proj(attended.transpose(1, 2).flatten(2))
        return mixed

    def _of_heads(
        self, plain_BHTN: torch.Tensor, turned_BHTR: torch.Tensor, latent_B1TL: torch.Tensor, key_B1TR: torch.Tensor,
        mask: torch.Tensor | None,
    ) -> torch.Tensor:  # fmt: skip
        """Return the results [B, H, T, V] of keys and values that are made of each token."""
        made = split_heads(self.kv_b_proj(latent_B1TL.squeeze(1)), self.heads)
        key_BHTN, value_BHTV = torch.split(made, [self.plain, self.value], -1)
        key = torch.cat([key_BHTN, key_B1TR.expand(-1, self.heads, -1, -1)], -1)
        return F.scaled_dot_product_attention(
            torch.cat([plain_BHTN, turned_BHTR], -1), key, value_BHTV, attn_mask=mask, is_causal=mask is None,
            scale=self.scale,
        )  # fmt: skip

    def _of_latents(
        self, plain_BHTN: torch.Tensor, turned_BHTR: torch.Tensor, kept_B1SD: torch.Tensor, mask: torch.Tensor | None
    ) -> torch.Tensor:
        """Return the results [B, H, T, V] of the vectors of a cache, which all heads read.

        Raises:
            InvalidArgument: the layer that makes keys and values has adapters.
        """
        if hasattr(self.kv_b_proj, "lora_A"):
            raise InvalidArgument(
                "serving with adapters is not supported for latent attention, whose cache applies kv_b_proj's weight "
                "to queries; expected adapters=0: merge the adapter into the checkpoint"
            )
        batch, heads, count, _ = plain_BHTN.shape
        weight = self.kv_b_proj.weight.view(heads, self.plain + self.value, self.latent)
        of_keys_HNL, of_values_HVL = torch.split(weight, [self.plain, self.value], 1)
        query = torch.cat([plain_BHTN @ of_keys_HNL, turned_BHTR], -1).reshape(batch, 1, heads * count, -1)
        if mask is not None:  # [B, 1, T, S]: the same for each head
            mask = mask.expand(batch, heads, count, -1).reshape(batch, 1, heads * count, -1)
        latents = F.scaled_dot_product_attention(
            query, kept_B1SD, kept_B1SD[..., : self.latent], attn_mask=mask, scale=self.scale
        )
        made: torch.Tensor = latents.view(batch, heads, count, self.latent) @ of_values_HVL.transpose(1, 2)
        return made


def _stretched(sizes: FamilySizes) -> float:
    """Return YaRN's factor of the products of queries and keys, before it is squared."""
    if not sizes.rotary_all_scale or sizes.rotary_factor <= 1 or sizes.rotary_kind == "default":
        return 1.0
    return 0.1 * sizes.rotary_all_scale * math.log(sizes.rotary_factor) + 1
