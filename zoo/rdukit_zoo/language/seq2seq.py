"""Encoder-decoders: T5, mT5, BART and mBART as one module with a table of their differences.

Parameters are named as BART's; ``seq2seq_configs`` says how a family's folders spell them.

Axes: B batch, S tokens of a source, T tokens of a target, K keys, H heads, D width of a head, C width of the model,
V vocabulary.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import nn

import sambaflow.samba as samba
from rdukit_zoo.language.attention import CachedAttention, Places, attention_mask, split_heads
from rdukit_zoo.language.decoder import init_normal
from rdukit_zoo.language.distances import distance_buckets
from rdukit_zoo.language.family_sizes import ACTIVATIONS
from rdukit_zoo.language.norms import RootMeanSquare
from rdukit_zoo.language.seq2seq_configs import HUB_FORMAT
from rdukit_zoo.language.seq2seq_sizes import VARIANTS, Seq2SeqSizes
from rdukit_zoo.registry import IGNORED, SizeValue, TextServing, model

#: Rows of BART's tables of positions before the first position.
_POSITIONS_FROM = 2


def _build_norm(sizes: Seq2SeqSizes) -> nn.Module:
    if sizes.of.has_distances:
        return RootMeanSquare(sizes.width, sizes.epsilon, adds_one=False)
    return nn.LayerNorm(sizes.width, sizes.epsilon)


class Seq2SeqAttention(nn.Module):
    """Attention of states [B, T, C] to themselves, or to the states of a source.

    The caches hold ``kept`` tokens of each of ``texts`` texts.
    """

    def __init__(self, sizes: Seq2SeqSizes, *, is_decoder: bool, kept: int, texts: int) -> None:
        super().__init__()
        self.heads, head_width = sizes.heads_of(is_decoder)
        inner, has_bias = self.heads * head_width, not sizes.of.has_distances
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(sizes.width, inner, bias=has_bias) for _ in range(3))
        self.out_proj = nn.Linear(inner, sizes.width, bias=has_bias)
        scale = 1.0 if sizes.of.has_distances else None
        self.attention = CachedAttention(self.heads, self.heads, head_width, kept, texts, scale)

    def forward(
        self, x_BTC: torch.Tensor, source_BSC: torch.Tensor, mask: torch.Tensor | None, places: Places | None = None
    ) -> torch.Tensor:
        """Attend to ``source_BSC``; with ``places`` also to the texts' cached positions."""
        attended = self.attention(self._query(x_BTC), *self._keys_and_values(source_BSC), places, mask)
        mixed_BTC: torch.Tensor = self.out_proj(attended)
        return mixed_BTC

    def keep(self, source_BSC: torch.Tensor, places: Places) -> None:
        """Keep keys and values of a source."""
        self.attention.write(*self._keys_and_values(source_BSC), places)

    def attend_kept(self, x_BTC: torch.Tensor, rows_B: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Attend to the kept sources of the rows."""
        mixed_BTC: torch.Tensor = self.out_proj(self.attention.attend_kept(self._query(x_BTC), rows_B, mask))
        return mixed_BTC

    def _query(self, x_BTC: torch.Tensor) -> torch.Tensor:
        return split_heads(self.q_proj(x_BTC), self.heads)

    def _keys_and_values(self, source_BSC: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return split_heads(self.k_proj(source_BSC), self.heads), split_heads(self.v_proj(source_BSC), self.heads)


@dataclass(frozen=True, slots=True)
class EncodedSource:
    """Parts of the encoder that a decoder's layers read: its states, or the rows of the caches that keep them.

    ``mask`` [B, 1, 1, S] is true for tokens and false for padding.
    """

    mask: torch.Tensor
    states: torch.Tensor | None = None
    rows: torch.Tensor | None = None


class Seq2SeqLayer(nn.Module):
    """Self-attention, in a decoder attention to the source, and feed-forward."""

    def __init__(self, sizes: Seq2SeqSizes, is_decoder: bool, texts: int) -> None:
        super().__init__()
        self.norms_first, has_bias = sizes.of.norms_first, not sizes.of.has_distances
        self.function, self.approximate = ACTIVATIONS[sizes.activation]
        inner = sizes.decoder_feed_forward if is_decoder else sizes.feed_forward
        self.self_attn = Seq2SeqAttention(
            sizes, is_decoder=is_decoder, kept=sizes.context_length, texts=texts if is_decoder else 0
        )
        self.self_attn_layer_norm = _build_norm(sizes)
        if is_decoder:
            self.encoder_attn = Seq2SeqAttention(sizes, is_decoder=True, kept=sizes.prompt_length, texts=texts)
            self.encoder_attn_layer_norm = _build_norm(sizes)
        self.is_gated = sizes.is_gated
        if self.is_gated:
            self.gate, self.up = (nn.Linear(sizes.width, inner, bias=has_bias) for _ in range(2))
        else:
            self.fc1 = nn.Linear(sizes.width, inner, bias=has_bias)
        self.fc2 = nn.Linear(inner, sizes.width, bias=has_bias)
        self.final_layer_norm = _build_norm(sizes)

    def forward(
        self, x_BTC: torch.Tensor, mask: torch.Tensor | None, places: Places | None = None,
        source: EncodedSource | None = None,
    ) -> torch.Tensor:  # fmt: skip
        read_BTC = self._before(self.self_attn_layer_norm, x_BTC)
        x_BTC = self._after(self.self_attn_layer_norm, x_BTC + self.self_attn(read_BTC, read_BTC, mask, places))
        if source is not None:
            read_BTC = self._before(self.encoder_attn_layer_norm, x_BTC)
            if source.states is not None:
                mixed_BTC = self.encoder_attn(read_BTC, source.states, source.mask)
            else:
                mixed_BTC = self.encoder_attn.attend_kept(read_BTC, cast(torch.Tensor, source.rows), source.mask)
            x_BTC = self._after(self.encoder_attn_layer_norm, x_BTC + mixed_BTC)
        made_BTC = self._feed_forward(self._before(self.final_layer_norm, x_BTC))
        return self._after(self.final_layer_norm, x_BTC + made_BTC)

    def _before(self, norm: nn.Module, x_BTC: torch.Tensor) -> torch.Tensor:
        return norm(x_BTC) if self.norms_first else x_BTC

    def _after(self, norm: nn.Module, x_BTC: torch.Tensor) -> torch.Tensor:
        return x_BTC if self.norms_first else norm(x_BTC)

    def _feed_forward(self, x_BTC: torch.Tensor) -> torch.Tensor:
        if self.is_gated:
            made_BTC: torch.Tensor = self.fc2(self._activated(self.gate(x_BTC)) * self.up(x_BTC))
        else:
            made_BTC = self.fc2(self._activated(self.fc1(x_BTC)))
        return made_BTC

    def _activated(self, x: torch.Tensor) -> torch.Tensor:
        if self.function == "gelu":
            return F.gelu(x, approximate=self.approximate)
        return F.silu(x) if self.function == "silu" else F.relu(x)


class Seq2SeqStack(nn.Module):
    """Layers of the encoder or of the decoder, with their positions: embedded tokens [B, T, C] → states [B, T, C]."""

    def __init__(self, sizes: Seq2SeqSizes, is_decoder: bool, texts: int) -> None:
        super().__init__()
        self.is_decoder, self.has_distances = is_decoder, sizes.of.has_distances
        self.longest = sizes.context_length if is_decoder else sizes.prompt_length
        if self.has_distances:
            self.relative_attention_bias = nn.Embedding(sizes.buckets, sizes.heads)
            self.buckets: torch.Tensor
            longest = max(sizes.context_length, sizes.prompt_length)  # training gives both sides as many tokens
            self.register_buffer(
                "buckets", distance_buckets(longest, sizes.buckets, sizes.farthest, is_causal=is_decoder)
            )
            self.farthest_key = 0 if is_decoder else longest - 1
        else:
            self.embed_positions = nn.Embedding(sizes.positions + _POSITIONS_FROM, sizes.width)
            self.layernorm_embedding = nn.LayerNorm(sizes.width, sizes.epsilon)
        count = sizes.decoder_layers if is_decoder else sizes.layers
        self.layers = nn.ModuleList(Seq2SeqLayer(sizes, is_decoder, texts) for _ in range(count))
        self.layer_norm = _build_norm(sizes) if sizes.of.norms_first else None

    def forward(
        self, x_BTC: torch.Tensor, seen: torch.Tensor | None = None, places: Places | None = None,
        source: EncodedSource | None = None,
    ) -> torch.Tensor:  # fmt: skip
        """Return the states; ``seen`` [B, 1, 1, S] marks the tokens of a source."""
        count = x_BTC.shape[1]
        positions = torch.arange(count).view(1, -1) if places is None else places.positions
        if self.is_decoder:
            seen = attention_mask(count, places, self.longest)
        mask = seen
        if self.has_distances:
            mask = self._biased(positions, count if places is None else self.longest, seen)
        else:
            x_BTC = self.layernorm_embedding(x_BTC + self.embed_positions(positions + _POSITIONS_FROM))
        for layer in self.layers:
            x_BTC = layer(x_BTC, mask, places, source)
        return x_BTC if self.layer_norm is None else self.layer_norm(x_BTC)

    def _biased(self, positions_BT: torch.Tensor, keys: int, seen: torch.Tensor | None) -> torch.Tensor:
        """Return the bias [B, H, T, K] of queries at their positions to the first ``keys`` tokens of their texts."""
        ahead_BTK = torch.arange(keys) - positions_BT.unsqueeze(-1)
        if seen is None:
            seen = (ahead_BTK <= 0).unsqueeze(1)
        places_BTK = (-ahead_BTK).clamp(min=0) if self.is_decoder else ahead_BTK + self.farthest_key
        buckets_BTK = self.buckets.index_select(0, places_BTK.flatten()).view(places_BTK.shape)
        bias_BHTK = self.relative_attention_bias(buckets_BTK).permute(0, 3, 1, 2)
        return torch.where(seen, bias_BHTK, torch.full_like(bias_BHTK, -math.inf))


class Seq2SeqBody(nn.Module):
    """The shared embedding, the encoder and the decoder."""

    def __init__(self, sizes: Seq2SeqSizes, texts: int) -> None:
        super().__init__()
        self.scale = sizes.width**0.5 if sizes.scales_embedding else 1.0
        self.shared = nn.Embedding(sizes.vocabulary, sizes.width)
        self.encoder, self.decoder = Seq2SeqStack(sizes, False, texts), Seq2SeqStack(sizes, True, texts)

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the embeddings [B, T, C] of tokens, without positions."""
        x_BTC: torch.Tensor = self.shared(tokens)
        return x_BTC if self.scale == 1 else x_BTC * self.scale


class Seq2Seq(nn.Module):
    """An encoder-decoder.

    Without caches it trains: (tokens [B, S], labels [B, T]) → loss [], the mean over labels that are not -100. Tokens
    that equal ``padding`` are not seen. The decoder reads the labels, shifted to the right behind ``start``.

    With caches of R ``texts`` it serves, by the shapes of its inputs, which are those of ``Decoder``:

    - (tokens [1, S], positions [1, S], rows [1], targets [1, S], last [1]): a source, read up to the token with the
      index ``last``. Its keys and values of each layer are kept in the row, and ``start`` is the first token of the
      row's target; logits [1, V] after it.
    - (tokens [B, 1], positions [B, 1], rows [B], targets [B, 1]): one more token of B targets, the first of which are
      at position 1; logits [B, V] after it.
    - (tokens [1, S], shares [1, S] float): the source as a vector [1, C], the encoder's states added up by their
      shares; a token without a share is padding.

    Tokens alone give the logits [B, V] after ``start``.
    """

    def __init__(self, sizes: Seq2SeqSizes, texts: int = 0) -> None:
        super().__init__()
        self.sizes, self.texts = sizes, texts
        self.model = Seq2SeqBody(sizes, texts)
        self.lm_head = nn.Linear(sizes.width, sizes.vocabulary, bias=False)
        if sizes.is_tied:
            self.lm_head.weight = self.model.shared.weight
        self.final_logits_bias: torch.Tensor
        if not sizes.of.has_distances:
            self.register_buffer("final_logits_bias", torch.zeros(1, sizes.vocabulary))
        self.lengths: torch.Tensor
        if texts:
            self.register_buffer("lengths", torch.zeros(texts + 1, dtype=torch.int64), persistent=False)
        init_normal(self)

    def forward(
        self, tokens: torch.Tensor, at: torch.Tensor | None = None, rows: torch.Tensor | None = None,
        targets: torch.Tensor | None = None, last: torch.Tensor | None = None,
    ) -> torch.Tensor:  # fmt: skip
        if at is None:
            begun = torch.full_like(tokens[:, :1], self.sizes.start)
            return self.logits(tokens, begun)[:, -1]
        if rows is None or targets is None:
            if at.is_floating_point():
                vector: torch.Tensor = (self.encode(tokens, at > 0) * at.unsqueeze(-1)).sum(1)
                return vector
            logits_BTV = self.logits(tokens, self.shifted(at))
            return F.cross_entropy(logits_BTV.flatten(0, 1), at.flatten(), ignore_index=IGNORED)
        if last is None:
            return self._continue(tokens, at, rows, targets)
        self._read(tokens, at, rows, targets, last)
        return self._continue(
            torch.full_like(tokens[:, :1], self.sizes.start), torch.zeros_like(at[:, :1]), rows, rows.view(-1, 1)
        )

    def encode(self, tokens: torch.Tensor, is_token_BS: torch.Tensor) -> torch.Tensor:
        """Return the encoder's states [B, S, C] of a source."""
        states_BSC: torch.Tensor = self.model.encoder(self.model.embed(tokens), is_token_BS[:, None, None, :])
        return states_BSC

    def logits(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the logits [B, T, V] after each token of whole targets [B, T] of sources [B, S]."""
        is_token_BS = tokens != self.sizes.padding
        source = EncodedSource(is_token_BS[:, None, None, :], states=self.encode(tokens, is_token_BS))
        return self._logits_of(self.model.decoder(self.model.embed(targets), source=source))

    def shifted(self, labels: torch.Tensor) -> torch.Tensor:
        """Return the decoder's input [B, T] that predicts labels [B, T]."""
        known = labels.masked_fill(labels == IGNORED, self.sizes.padding)
        if self.sizes.of.wraps_target:
            # A row without labels fills a batch up: it begins with padding.
            first = known.gather(1, ((known != self.sizes.padding).sum(1, keepdim=True) - 1).clamp(min=0))
        else:
            first = torch.full_like(known[:, :1], self.sizes.start)
        return torch.cat([first, known[:, :-1]], 1)

    def _read(
        self, tokens: torch.Tensor, at: torch.Tensor, rows: torch.Tensor, targets: torch.Tensor, last: torch.Tensor
    ) -> None:
        """Keep a source's keys and values, and how many tokens it has."""
        states_BSC = self.encode(tokens, torch.arange(tokens.shape[1]).view(1, -1) <= last)
        heads = self.sizes.heads_of(is_decoder=True)[0]
        places = Places.find(at, rows, targets, heads, self.sizes.prompt_length)
        for layer in self.model.decoder.layers:
            cast(Seq2SeqLayer, layer).encoder_attn.keep(states_BSC, places)
        self.lengths.index_copy_(0, rows, last + 1)

    def _continue(
        self, tokens: torch.Tensor, at: torch.Tensor, rows: torch.Tensor, targets: torch.Tensor
    ) -> torch.Tensor:
        heads = self.sizes.heads_of(is_decoder=True)[0]
        places = Places.find(at, rows, targets, heads, self.sizes.context_length)
        # The spare row has no source: it reads one token of zeros, so that its numbers are finite.
        lengths_B = self.lengths.index_select(0, rows).clamp(min=1)
        seen_B11S = torch.arange(self.sizes.prompt_length) < lengths_B.view(-1, 1, 1, 1)
        source = EncodedSource(seen_B11S, rows=rows)
        return self._logits_of(self.model.decoder(self.model.embed(tokens), places=places, source=source)[:, 0])

    def _logits_of(self, states: torch.Tensor) -> torch.Tensor:
        if self.sizes.scales_head:
            states = states * self.sizes.width**-0.5
        logits: torch.Tensor = self.lm_head(states)
        return logits if self.sizes.of.has_distances else logits + self.final_logits_bias


def build_serving(texts: int, **sizes: SizeValue) -> nn.Module:
    """Build the model with caches for as many ``texts`` at once."""
    return Seq2Seq(Seq2SeqSizes(**sizes), texts)  # type: ignore[arg-type]


def build(**sizes: SizeValue) -> nn.Module:
    """Build the model that trains."""
    return Seq2Seq(Seq2SeqSizes(**sizes))  # type: ignore[arg-type]


def make_inputs(batch_size: int, **sizes: SizeValue) -> tuple[samba.SambaTensor, ...]:
    """Return dummy inputs ``tokens`` [batch, prompt_length] and ``labels`` [batch, context_length]."""
    return tuple(
        samba.randint(int(sizes["vocabulary"]), (batch_size, int(sizes[size])), name=name, batch_dim=0)
        for name, size in (("tokens", "prompt_length"), ("labels", "context_length"))
    )


#: Arrays of texts choose from the vocabulary.
_LIMITS: Mapping[str, str | int] = {"tokens": "vocabulary", "labels": "vocabulary"}

model(
    name="seq2seq",
    title="Encoder-decoders: T5, mT5, BART, mBART",
    task="text-to-text",
    licence="Apache-2.0",
    source="Raffel et al., T5 (2020); Lewis et al., BART (2020); Liu et al., mBART (2020)",
    sizes=asdict(Seq2SeqSizes()),
    make_inputs=make_inputs,
    text_serving=TextServing(
        build_serving, context="context_length", prompt="prompt_length", vocabulary="vocabulary", start="start"
    ),
    variants=VARIANTS,
    hub=HUB_FORMAT,
    limits=_LIMITS,
)(build)
