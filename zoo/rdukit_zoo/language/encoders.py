"""Bodies of the encoders: BERT, RoBERTa, MPNet (a norm after each part), ModernBERT (a norm before each part).

Parameters are named as Hugging Face writes BERT's and ModernBERT's to disk; ``encoder_sizes`` spells the others'.

Axes: B batch, T tokens of a text, H heads, D width of a head, C width of the model.
"""

import math
from typing import Final

import torch
import torch.nn.functional as F
from torch import nn

from rdukit_zoo.language.attention import LayerList, RotaryPositions, rotate, split_heads
from rdukit_zoo.language.distances import distance_buckets
from rdukit_zoo.language.encoder_sizes import BertSizes

#: Value added to the products of hidden tokens. It is finite, because a row of padding may see no token.
UNSEEN: Final = -1e30
#: MPNet's buckets of distances.
_BUCKETS: Final = 32


class BertEmbeddings(nn.Module):
    """Words, positions and kinds of tokens, added up and normed: [B, T, C]."""

    def __init__(self, sizes: BertSizes) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(sizes.vocabulary, sizes.width)
        self.position_embeddings = nn.Embedding(sizes.position_rows, sizes.width)
        self.has_types, self.padding = sizes.of.has_types, sizes.padding if sizes.of.counts_padding else None
        if self.has_types:
            self.token_type_embeddings = nn.Embedding(sizes.token_types, sizes.width)
        self.LayerNorm = nn.LayerNorm(sizes.width, sizes.epsilon)
        self.dropout = nn.Dropout(sizes.dropout)

    def forward(self, tokens: torch.Tensor, types: torch.Tensor) -> torch.Tensor:
        places = self.position_embeddings(self._positions(tokens))
        x_BTC = self.word_embeddings(tokens)
        if self.has_types:
            x_BTC = x_BTC + self.token_type_embeddings(types)
        embedded: torch.Tensor = self.dropout(self.LayerNorm(x_BTC + places))
        return embedded

    def _positions(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return each token's row of the position table; RoBERTa and MPNet skip padding, which has a row of its own."""
        if self.padding is None:
            return torch.arange(tokens.shape[1])
        is_token = (tokens != self.padding).long()
        return is_token.cumsum(1) * is_token + self.padding


class BertSelfAttention(nn.Module):
    """Attention of all tokens to those that ``seen`` [broadcasts to B, H, T, T] marks, or with it as a bias."""

    def __init__(self, sizes: BertSizes) -> None:
        super().__init__()
        self.heads = sizes.heads
        self.query, self.key, self.value = (nn.Linear(sizes.width, sizes.width) for _ in range(3))

    def forward(self, x_BTC: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        query, key, value = (split_heads(part(x_BTC), self.heads) for part in (self.query, self.key, self.value))
        mixed_BHTD = F.scaled_dot_product_attention(query, key, value, attn_mask=seen)
        return mixed_BHTD.transpose(1, 2).reshape(x_BTC.shape)


class BertOutput(nn.Module):
    """Projects, adds the input, and norms."""

    def __init__(self, inner: int, sizes: BertSizes) -> None:
        super().__init__()
        self.dense, self.LayerNorm = nn.Linear(inner, sizes.width), nn.LayerNorm(sizes.width, sizes.epsilon)
        self.dropout = nn.Dropout(sizes.dropout)

    def forward(self, x: torch.Tensor, came_in_BTC: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.LayerNorm(self.dropout(self.dense(x)) + came_in_BTC)
        return made


class BertLayer(nn.Module):
    """Attention and feed-forward, each with a residual connection and then a norm."""

    def __init__(self, sizes: BertSizes) -> None:
        super().__init__()
        self.attention = nn.ModuleDict({"self": BertSelfAttention(sizes), "output": BertOutput(sizes.width, sizes)})
        self.intermediate = nn.ModuleDict({"dense": nn.Linear(sizes.width, sizes.feed_forward)})
        self.output = BertOutput(sizes.feed_forward, sizes)

    def forward(self, x_BTC: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        x_BTC = self.attention["output"](self.attention["self"](x_BTC, seen), x_BTC)
        made: torch.Tensor = self.output(F.gelu(self.intermediate["dense"](x_BTC)), x_BTC)
        return made


class DistanceLayers(LayerList):
    """Layers whose products of queries and keys have a learned bias by the distance of their tokens."""

    def __init__(self, sizes: BertSizes) -> None:
        super().__init__(BertLayer(sizes) for _ in range(sizes.layers))
        self.relative_attention_bias = nn.Embedding(_BUCKETS, sizes.heads)
        self.buckets: torch.Tensor
        self.register_buffer("buckets", bucket_table(sizes.context_length))

    def biased(self, seen: torch.Tensor, count: int) -> torch.Tensor:
        """Return the bias [B, H, T, T] of ``count`` tokens, of which ``seen`` [B, 1, 1, T] are seen."""
        bias_HTT = self.relative_attention_bias(self.buckets[:count, :count]).permute(2, 0, 1)
        return torch.where(seen, bias_HTT, torch.full_like(bias_HTT, -math.inf))


def bucket_table(count: int) -> torch.Tensor:
    """Return the bucket [T, T] of the distance of each key (second axis) from each query."""
    distances = torch.arange(count) - torch.arange(count).view(-1, 1)
    return distance_buckets(count)[distances + count - 1]


class BertBody(nn.Module):
    """(tokens [B, T], types [B, T], mask [B, T], 1 for tokens and 0 for padding) → states [B, T, C]."""

    def __init__(self, sizes: BertSizes, has_pooler: bool) -> None:
        super().__init__()
        self.embeddings = BertEmbeddings(sizes)
        self.encoder = (
            DistanceLayers(sizes)
            if sizes.of.has_distances
            else LayerList(BertLayer(sizes) for _ in range(sizes.layers))
        )
        if has_pooler:
            self.pooler = nn.ModuleDict({"dense": nn.Linear(sizes.width, sizes.width)})

    def forward(self, tokens: torch.Tensor, types: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x_BTC: torch.Tensor = self.embeddings(tokens, types)
        seen = mask.bool()[:, None, None, :]
        if isinstance(self.encoder, DistanceLayers):
            seen = self.encoder.biased(seen, tokens.shape[1])
        for layer in self.encoder.layer:
            x_BTC = layer(x_BTC, seen)
        return x_BTC

    def pool(self, states_BTC: torch.Tensor) -> torch.Tensor:
        """Return the vector [B, C] of each text, from its first token."""
        pooled: torch.Tensor = torch.tanh(self.pooler["dense"](states_BTC[:, 0]))
        return pooled


class ModernEmbeddings(nn.Module):
    """Words, normed: [B, T, C]."""

    def __init__(self, sizes: BertSizes) -> None:
        super().__init__()
        self.tok_embeddings = nn.Embedding(sizes.vocabulary, sizes.width)
        self.norm = nn.LayerNorm(sizes.width, sizes.epsilon, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        embedded: torch.Tensor = self.norm(self.tok_embeddings(tokens))
        return embedded


class ModernAttention(nn.Module):
    """Attention with rotary positions, of all tokens to all that ``bias`` [B, 1, T, T] leaves."""

    def __init__(self, sizes: BertSizes) -> None:
        super().__init__()
        self.heads = sizes.heads
        self.Wqkv = nn.Linear(sizes.width, 3 * sizes.width, bias=False)
        self.Wo = nn.Linear(sizes.width, sizes.width, bias=False)

    def forward(
        self, x_BTC: torch.Tensor, rotary: tuple[torch.Tensor, torch.Tensor], bias: torch.Tensor
    ) -> torch.Tensor:
        query, key, value = (split_heads(part, self.heads) for part in self.Wqkv(x_BTC).chunk(3, -1))
        mixed_BHTD = F.scaled_dot_product_attention(rotate(query, *rotary), rotate(key, *rotary), value, attn_mask=bias)
        mixed: torch.Tensor = self.Wo(mixed_BHTD.transpose(1, 2).reshape(x_BTC.shape))
        return mixed


class ModernFeedForward(nn.Module):
    """A gated feed-forward part whose activated half comes first."""

    def __init__(self, sizes: BertSizes) -> None:
        super().__init__()
        self.Wi = nn.Linear(sizes.width, 2 * sizes.feed_forward, bias=False)
        self.Wo = nn.Linear(sizes.feed_forward, sizes.width, bias=False)

    def forward(self, x_BTC: torch.Tensor) -> torch.Tensor:
        activated, gate = self.Wi(x_BTC).chunk(2, -1)
        made: torch.Tensor = self.Wo(F.gelu(activated) * gate)
        return made


class ModernLayer(nn.Module):
    """Attention and feed-forward, each after a norm, except the first layer's attention."""

    def __init__(self, sizes: BertSizes, number: int) -> None:
        super().__init__()
        self.attn_norm = nn.LayerNorm(sizes.width, sizes.epsilon, bias=False) if number else nn.Identity()
        self.attn, self.mlp = ModernAttention(sizes), ModernFeedForward(sizes)
        self.mlp_norm = nn.LayerNorm(sizes.width, sizes.epsilon, bias=False)

    def forward(
        self, x_BTC: torch.Tensor, rotary: tuple[torch.Tensor, torch.Tensor], bias: torch.Tensor
    ) -> torch.Tensor:
        x_BTC = x_BTC + self.attn(self.attn_norm(x_BTC), rotary, bias)
        made: torch.Tensor = x_BTC + self.mlp(self.mlp_norm(x_BTC))
        return made


class ModernBody(nn.Module):
    """(tokens [B, T], types [B, T], which count for nothing, mask [B, T]) → states [B, T, C]."""

    def __init__(self, sizes: BertSizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.embeddings = ModernEmbeddings(sizes)
        self.layers = nn.ModuleList(ModernLayer(sizes, number) for number in range(sizes.layers))
        self.final_norm = nn.LayerNorm(sizes.width, sizes.epsilon, bias=False)
        about = (sizes.context_length, sizes.width // sizes.heads)
        self.rotary = RotaryPositions(*about, sizes.rotary_base)
        self.local_rotary = RotaryPositions(*about, sizes.local_rotary_base)

    def forward(self, tokens: torch.Tensor, types: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        del types
        count = tokens.shape[1]
        seen = mask.bool()[:, None, None, :].expand(-1, 1, count, count)
        near = (torch.arange(count) - torch.arange(count).view(-1, 1)).abs() <= self.sizes.window
        calls = {False: (self.rotary(count, None), _bias_of(seen))}
        if any(map(self.sizes.has_window, range(self.sizes.layers))):
            calls[True] = (self.local_rotary(count, None), _bias_of(seen & near))
        x_BTC: torch.Tensor = self.embeddings(tokens)
        for number, layer in enumerate(self.layers):
            x_BTC = layer(x_BTC, *calls[self.sizes.has_window(number)])
        normed: torch.Tensor = self.final_norm(x_BTC)
        return normed


def _bias_of(seen_B1TT: torch.Tensor) -> torch.Tensor:
    return (~seen_B1TT).float() * UNSEEN


def build_body(sizes: BertSizes, has_pooler: bool) -> nn.Module:
    """Return the family's body; forward takes (tokens, types, mask, each [B, T]) and gives states [B, T, C]."""
    return ModernBody(sizes) if sizes.of.is_modern else BertBody(sizes, has_pooler)


class FirstTokenHead(nn.Module):
    """The head for classes of RoBERTa and MPNet: states [B, T, C] → logits [B, K], from the first token."""

    def __init__(self, sizes: BertSizes) -> None:
        super().__init__()
        self.dense, self.dropout = nn.Linear(sizes.width, sizes.width), nn.Dropout(sizes.dropout)
        self.out_proj = nn.Linear(sizes.width, sizes.num_classes)

    def forward(self, states_BTC: torch.Tensor) -> torch.Tensor:
        inner = torch.tanh(self.dense(self.dropout(states_BTC[:, 0])))
        logits_BK: torch.Tensor = self.out_proj(self.dropout(inner))
        return logits_BK


class ModernHead(nn.Module):
    """The layer that ModernBERT's classes are read from: pooled states [B, C] → [B, C]."""

    def __init__(self, sizes: BertSizes) -> None:
        super().__init__()
        self.dense = nn.Linear(sizes.width, sizes.width, bias=sizes.has_classifier_bias)
        self.norm = nn.LayerNorm(sizes.width, sizes.epsilon, bias=False)

    def forward(self, pooled_BC: torch.Tensor) -> torch.Tensor:
        inner: torch.Tensor = self.norm(F.gelu(self.dense(pooled_BC)))
        return inner


def pool_states(sizes: BertSizes, states_BTC: torch.Tensor, shares_BT: torch.Tensor) -> torch.Tensor:
    """Return the vector [B, C] of each text as ``sizes.pooling`` says; padding has a share of 0, each token 1 / count.

    Source: sentence-transformers' documentation of its pooling.
    """
    pooling = sizes.pooling
    is_token_BT = shares_BT > 0
    if pooling in {"mean", "mean_sqrt", "weighted_mean"}:
        if pooling == "weighted_mean":
            shares_BT = is_token_BT * torch.arange(1.0, shares_BT.shape[1] + 1)
            shares_BT = shares_BT / shares_BT.sum(1, keepdim=True).clamp(min=1)
        elif pooling == "mean_sqrt":
            shares_BT = shares_BT * is_token_BT.sum(1, keepdim=True).float().sqrt()
        vectors_BC = (states_BTC * shares_BT.unsqueeze(-1)).sum(1)
    elif pooling == "max":
        least = max(UNSEEN, torch.finfo(states_BTC.dtype).min)
        vectors_BC = torch.where(is_token_BT.unsqueeze(-1), states_BTC, torch.full_like(states_BTC, least)).amax(1)
    elif pooling == "first":
        vectors_BC = states_BTC[:, 0]
    else:
        places = torch.arange(shares_BT.shape[1])
        is_last_BT = places == (is_token_BT * places).amax(1, keepdim=True)
        vectors_BC = (states_BTC * is_last_BT.unsqueeze(-1)).sum(1)
    return F.normalize(vectors_BC, dim=-1) if sizes.normalizes else vectors_BC
