"""A decoder of the differences that a family and its configuration name: Qwen, Gemma, Phi, Granite, OPT and others.

Parameters are named as Llama's; ``family_configs`` says how a family's folders spell them.

Axes: B batch, T tokens of a call, H heads, G heads of keys and values, D width of a head, R width that is rotated,
C width of the model, V vocabulary, K experts of a token.
"""

from collections.abc import Sequence
from dataclasses import asdict

import torch
import torch.nn.functional as F
from torch import nn

from rdukit_zoo.language.attention import (
    CachedAttention,
    CallContext,
    Places,
    RotaryPositions,
    attention_mask,
    rotate,
    split_heads,
)
from rdukit_zoo.language.decoder import Decoder, init_normal, make_inputs
from rdukit_zoo.language.families import PLACEMENTS
from rdukit_zoo.language.family_configs import HUB_FORMAT
from rdukit_zoo.language.family_sizes import FamilySizes, written_out
from rdukit_zoo.language.family_variants import VARIANTS
from rdukit_zoo.language.feed_forward import build_feed_forward
from rdukit_zoo.language.latent_attention import LatentAttention
from rdukit_zoo.language.norms import RootMeanSquare
from rdukit_zoo.registry import SizeValue, TextServing, model


class EachHeadNorm(nn.Module):
    """A layer norm without bias over each head [B, H, T, D], with a weight [H, D]."""

    def __init__(self, heads: int, head_width: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(heads, head_width))
        self.epsilon = epsilon

    def forward(self, x_BHTD: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x_BHTD, (x_BHTD.shape[-1],), eps=self.epsilon) * self.weight[:, None, :]


def build_norm(sizes: FamilySizes, width: int) -> nn.Module:
    """Return the family's kind of norm over ``width`` elements."""
    kind = sizes.of.norm
    if kind.startswith("rms"):
        return RootMeanSquare(width, sizes.epsilon, adds_one=kind == "rms_plus_one")
    return nn.LayerNorm(width, sizes.epsilon, bias=kind == "layer")


def build_head_norm(sizes: FamilySizes, heads: int) -> nn.Module | None:
    """Return the norm of queries or keys; None without one."""
    if sizes.head_norms == "none":
        return None
    if sizes.head_norms == "each":
        return EachHeadNorm(heads, sizes.width_of_head, sizes.epsilon)
    return build_norm(sizes, sizes.width_of_head * (heads if sizes.head_norms == "whole" else 1))


class ConfiguredAttention(nn.Module):
    """Self-attention, with one weight for each projection or for all three."""

    def __init__(self, sizes: FamilySizes, texts: int) -> None:
        super().__init__()
        heads, groups, inner = sizes.heads, sizes.groups, sizes.width_of_head
        self.heads, self.groups, self.is_fused = heads, groups, sizes.of.is_fused
        self.is_interleaved, self.norms_whole = sizes.of.is_interleaved, sizes.head_norms == "whole"
        self.parts = (heads * inner, groups * inner, groups * inner)
        has_bias = "qkv" in sizes.biased
        if self.is_fused:
            self.qkv_proj = nn.Linear(sizes.width, sum(self.parts), bias=has_bias)
        else:
            self.q_proj, self.k_proj, self.v_proj = (nn.Linear(sizes.width, part, bias=has_bias) for part in self.parts)
        self.o_proj = nn.Linear(heads * inner, sizes.width, bias="output" in sizes.biased)
        self.q_norm, self.k_norm = build_head_norm(sizes, heads), build_head_norm(sizes, groups)
        is_usual = sizes.attention_scale == inner**-0.5
        self.attention = CachedAttention(
            heads, groups, inner, sizes.context_length, texts, None if is_usual else sizes.attention_scale,
            sizes.attention_cap,
        )  # fmt: skip
        self.sinks = nn.Parameter(torch.zeros(heads)) if sizes.of.has_sinks else None

    def forward(self, x_BTC: torch.Tensor, call: CallContext) -> torch.Tensor:
        query, key, value = self._projected(x_BTC)
        query_BHTD = self._normed(query, self.heads, self.q_norm)
        key_BGTD = self._normed(key, self.groups, self.k_norm)
        if call.rotary is not None:
            query_BHTD = rotate(query_BHTD, *call.rotary, self.is_interleaved)
            key_BGTD = rotate(key_BGTD, *call.rotary, self.is_interleaved)
        value_BGTD = split_heads(value, self.groups)
        attended = self.attention(query_BHTD, key_BGTD, value_BGTD, call.places, call.mask, self.sinks)
        mixed: torch.Tensor = self.o_proj(attended)
        return mixed

    def _projected(self, x_BTC: torch.Tensor) -> Sequence[torch.Tensor]:
        if self.is_fused:
            return self.qkv_proj(x_BTC).split(self.parts, -1)  # type: ignore[no-any-return]
        return self.q_proj(x_BTC), self.k_proj(x_BTC), self.v_proj(x_BTC)

    def _normed(self, x_BTC: torch.Tensor, heads: int, norm: nn.Module | None) -> torch.Tensor:
        if norm is None:
            return split_heads(x_BTC, heads)
        if self.norms_whole:
            return split_heads(norm(x_BTC), heads)
        normed: torch.Tensor = norm(split_heads(x_BTC, heads))
        return normed


class ConfiguredLayer(nn.Module):
    """Attention and feed-forward, with norms where the family has them."""

    def __init__(self, sizes: FamilySizes, number: int, texts: int) -> None:
        super().__init__()
        self.is_parallel, self.scale = sizes.placement == "parallel", sizes.residual_scale
        self.attention_norms, self.feed_forward_norms = PLACEMENTS[sizes.placement]
        self.self_attn = LatentAttention(sizes, texts) if sizes.of.is_latent else ConfiguredAttention(sizes, texts)
        self.mlp = build_feed_forward(sizes, number)
        for name in (*self.attention_norms, *self.feed_forward_norms):
            if name:
                self.add_module(name, build_norm(sizes, sizes.width))

    def forward(self, x_BTC: torch.Tensor, call: CallContext) -> torch.Tensor:
        before, after, of_sum = self.attention_norms
        read_BTC = self._normed(before, x_BTC)
        mixed_BTC = self._normed(after, self.self_attn(read_BTC, call))
        if self.is_parallel:
            return self._added(self._added(x_BTC, mixed_BTC), self.mlp(read_BTC))
        x_BTC = self._normed(of_sum, self._added(x_BTC, mixed_BTC))
        before, after, of_sum = self.feed_forward_norms
        made_BTC = self._normed(after, self.mlp(self._normed(before, x_BTC)))
        return self._normed(of_sum, self._added(x_BTC, made_BTC))

    def _normed(self, name: str, x_BTC: torch.Tensor) -> torch.Tensor:
        normed: torch.Tensor = self.get_submodule(name)(x_BTC) if name else x_BTC
        return normed

    def _added(self, x_BTC: torch.Tensor, made_BTC: torch.Tensor) -> torch.Tensor:
        return x_BTC + (made_BTC if self.scale == 1 else made_BTC * self.scale)


class ConfiguredBody(nn.Module):
    """The embedding, the layers and the final norm: tokens [B, T] → states [B, T, C], or of the embedding's width."""

    def __init__(self, sizes: FamilySizes, texts: int) -> None:
        super().__init__()
        self.sizes = sizes
        self.embed_tokens = nn.Embedding(sizes.vocabulary, sizes.embedding_width)
        self.is_projected = sizes.embedding_width != sizes.width
        if self.is_projected:
            self.project_in = nn.Linear(sizes.embedding_width, sizes.width, bias=False)
            self.project_out = nn.Linear(sizes.width, sizes.embedding_width, bias=False)
        if not sizes.is_rotary:
            self.embed_positions = nn.Embedding(sizes.learned_positions + sizes.of.learned_from, sizes.width)
        self.layers = nn.ModuleList(ConfiguredLayer(sizes, number, texts) for number in range(sizes.layers))
        self.norm = None if sizes.placement == "sums" else build_norm(sizes, sizes.width)
        #: Whether windows are narrower than the context: wider ones limit nothing.
        self.has_window = 0 < sizes.window < sizes.context_length
        self.has_local = bool(sizes.local_rotary_base)
        if sizes.is_rotary:
            about = (sizes.context_length, sizes.rotated)
            turns = sizes.of.is_interleaved
            self.rotary = RotaryPositions(*about, sizes.rotary_base, sizes.rotary_scaling(), turns)
            if self.has_local:
                self.local_rotary = RotaryPositions(*about, sizes.local_rotary_base, None, turns)

    def forward(self, tokens: torch.Tensor, places: Places | None = None) -> torch.Tensor:
        sizes = self.sizes
        x_BTC, calls = self._embedded(tokens, places), self._calls(tokens.shape[1], places)
        for number, layer in enumerate(self.layers):
            is_local = bool(sizes.window) and sizes.has(sizes.window_layers, number)
            x_BTC = layer(x_BTC, calls[is_local, sizes.is_rotary and sizes.has(sizes.rotary_layers, number)])
        if self.norm is not None:
            x_BTC = self.norm(x_BTC)
        return self.project_out(x_BTC) if self.is_projected else x_BTC

    def _embedded(self, tokens: torch.Tensor, places: Places | None) -> torch.Tensor:
        x_BTC: torch.Tensor = self.embed_tokens(tokens)
        if self.sizes.embedding_scale != 1:
            x_BTC = x_BTC * self.sizes.embedding_scale
        if self.is_projected:
            x_BTC = self.project_in(x_BTC)
        if not self.sizes.is_rotary:
            positions = torch.arange(tokens.shape[1]) if places is None else places.positions
            x_BTC = x_BTC + self.embed_positions(positions + self.sizes.of.learned_from)
        return x_BTC

    def _calls(self, count: int, places: Places | None) -> dict[tuple[bool, bool], CallContext]:
        """Return what layers need, by whether they have the window and whether their positions rotate."""
        sizes = self.sizes
        marks = [
            (bool(sizes.window) and sizes.has(sizes.window_layers, number),
             sizes.is_rotary and sizes.has(sizes.rotary_layers, number))
            for number in range(sizes.layers)
        ]  # fmt: skip
        masks = {
            has: attention_mask(count, places, sizes.context_length, sizes.window if has else 0)
            for has in {self.has_window and is_local for is_local, _ in marks}
        }
        locals_ = {self.has_local and is_local for is_local, rotates in marks if rotates}
        tables = {
            is_local: (self.local_rotary if is_local else self.rotary)(count, places) for is_local in sorted(locals_)
        }
        return {
            (is_local, rotates): CallContext(
                tables[self.has_local and is_local] if rotates else None, places, masks[self.has_window and is_local]
            )
            for is_local, rotates in dict.fromkeys(marks)
        }


class ConfiguredDecoder(Decoder):
    """Decoder of a family; see ``Decoder`` for arguments and results of forward."""

    def __init__(self, sizes: FamilySizes, texts: int = 0) -> None:
        super().__init__(texts, 1 if sizes.of.is_latent else sizes.groups, sizes.context_length)
        sizes = sizes.filled()
        self.logit_scale, self.logit_cap = sizes.logit_scale, sizes.logit_cap
        self.model = ConfiguredBody(sizes, texts)
        self.lm_head = nn.Linear(sizes.embedding_width, sizes.vocabulary, bias="head" in sizes.biased)
        if sizes.is_tied:
            self.lm_head.weight = self.model.embed_tokens.weight
        init_normal(self)

    def read(self, tokens: torch.Tensor, places: Places | None = None) -> torch.Tensor:
        states_BTC: torch.Tensor = self.model(tokens, places)
        return states_BTC

    def logits_of(self, states: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.lm_head(states)
        if self.logit_scale != 1:
            logits = logits * self.logit_scale
        return torch.tanh(logits / self.logit_cap) * self.logit_cap if self.logit_cap else logits


def build_serving(texts: int, **sizes: SizeValue) -> nn.Module:
    """Build the model with caches for as many ``texts`` at once."""
    return ConfiguredDecoder(FamilySizes.from_values(sizes), texts=texts)


def build(**sizes: SizeValue) -> nn.Module:
    """Build the model that trains."""
    return ConfiguredDecoder(FamilySizes.from_values(sizes), texts=0)


model(
    name="decoder",
    title="Decoders by family: Qwen, Gemma, Phi, Granite, OPT and others",
    task="language-modelling",
    licence="Apache-2.0",
    source="published configurations of the families; see Hugging Face folders in the manual",
    sizes=asdict(FamilySizes()),
    make_inputs=make_inputs,
    text_serving=TextServing(build_serving, context="context_length", prompt="prompt_length", vocabulary="vocabulary"),
    variants=VARIANTS,
    hub=HUB_FORMAT,
    written_out=written_out,
)(build)
