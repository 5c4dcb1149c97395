"""Falcon: attention and feed-forward side by side, few heads of keys and values, rotary positions, no biases.

Sources: Almazrouei et al., The Falcon Series of Open Language Models (2023). Parameters are named as Hugging Face
writes them to disk.

Axes: B batch, T tokens of a call, H heads, G heads of keys and values, D width of a head, R width that is rotated,
C width of the model.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from rdukit.errors import InvalidArgument
from rdukit_zoo.checkpoints.hub_format import HubFormat, require_value
from rdukit_zoo.language.attention import CachedAttention, Places, RotaryPositions, attention_mask, rotate
from rdukit_zoo.language.decoder import Decoder, check_divides, check_lengths, init_normal, make_inputs, usual_prompt
from rdukit_zoo.registry import SizeValue, TextServing, Variant, model


@dataclass(frozen=True, slots=True)
class FalconSizes:
    """Sizes of a Falcon; the defaults train within a minute on a processor.

    Raises:
        InvalidArgument: they do not fit together.
    """

    width: int = 64
    layers: int = 2
    heads: int = 4
    #: Heads of keys and values, each read by as many query heads.
    key_value_heads: int = 1
    #: Whether attention and feed-forward have a norm each, as from 40b on, instead of one for both.
    has_two_norms: bool = False
    vocabulary: int = 512
    #: Tokens of a text, and of the cache.
    context_length: int = 128
    #: Tokens of the prompt that is read at once.
    prompt_length: int = 64
    epsilon: float = 1e-5
    rotary_base: float = 10000.0

    def __post_init__(self) -> None:
        check_lengths(self.context_length, self.prompt_length)
        check_divides(self.width, 2 * self.heads, heads_name="twice the heads,")
        check_divides(self.heads, self.key_value_heads, "heads", "key_value_heads")

    @property
    def head_width(self) -> int:
        """Width of a head, in elements."""
        return self.width // self.heads


class FalconAttention(nn.Module):
    """Self-attention; one projection gives each group its queries, then its key and its value."""

    def __init__(self, sizes: FalconSizes, texts: int) -> None:
        super().__init__()
        self.groups, inner = sizes.key_value_heads, sizes.head_width
        self.query_key_value = nn.Linear(sizes.width, (sizes.heads + 2 * self.groups) * inner, bias=False)
        self.dense = nn.Linear(sizes.width, sizes.width, bias=False)
        self.attention = CachedAttention(sizes.heads, self.groups, inner, sizes.context_length, texts)
        self.head_width = inner

    def forward(
        self, x_BTC: torch.Tensor, cosine_TR: torch.Tensor, sine_TR: torch.Tensor, places: Places | None,
        mask: torch.Tensor | None,
    ) -> torch.Tensor:  # fmt: skip
        batch, count, _ = x_BTC.shape
        fused = self.query_key_value(x_BTC).view(batch, count, self.groups, -1, self.head_width)
        query_BHTD = fused[:, :, :, :-2].flatten(2, 3).transpose(1, 2)
        key_BGTD, value_BGTD = (fused[:, :, :, part].transpose(1, 2) for part in (-2, -1))
        query_BHTD, key_BGTD = rotate(query_BHTD, cosine_TR, sine_TR), rotate(key_BGTD, cosine_TR, sine_TR)
        mixed: torch.Tensor = self.dense(self.attention(query_BHTD, key_BGTD, value_BGTD, places, mask))
        return mixed


class FalconFeedForward(nn.Module):
    """Two linear layers with exact GELU between."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.dense_h_to_4h = nn.Linear(width, 4 * width, bias=False)
        self.dense_4h_to_h = nn.Linear(4 * width, width, bias=False)

    def forward(self, x_BTC: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.dense_4h_to_h(F.gelu(self.dense_h_to_4h(x_BTC)))
        return made


class FalconLayer(nn.Module):
    """Attention and feed-forward of the same input, both added to it."""

    def __init__(self, sizes: FalconSizes, texts: int) -> None:
        super().__init__()
        self.has_two_norms = sizes.has_two_norms
        if sizes.has_two_norms:
            self.ln_attn = nn.LayerNorm(sizes.width, sizes.epsilon)
            self.ln_mlp = nn.LayerNorm(sizes.width, sizes.epsilon)
        else:
            self.input_layernorm = nn.LayerNorm(sizes.width, sizes.epsilon)
        self.self_attention = FalconAttention(sizes, texts)
        self.mlp = FalconFeedForward(sizes.width)

    def forward(
        self, x_BTC: torch.Tensor, cosine_TR: torch.Tensor, sine_TR: torch.Tensor, places: Places | None,
        mask: torch.Tensor | None,
    ) -> torch.Tensor:  # fmt: skip
        if self.has_two_norms:
            attended, fed = self.ln_attn(x_BTC), self.ln_mlp(x_BTC)
        else:
            attended = fed = self.input_layernorm(x_BTC)
        mixed = self.self_attention(attended, cosine_TR, sine_TR, places, mask)
        made: torch.Tensor = x_BTC + mixed + self.mlp(fed)
        return made


class FalconBody(nn.Module):
    """The embedding, the layers and the final norm: tokens [B, T] → states [B, T, C]."""

    def __init__(self, sizes: FalconSizes, texts: int) -> None:
        super().__init__()
        self.positions = sizes.context_length
        self.word_embeddings = nn.Embedding(sizes.vocabulary, sizes.width)
        self.h = nn.ModuleList(FalconLayer(sizes, texts) for _ in range(sizes.layers))
        self.ln_f = nn.LayerNorm(sizes.width, sizes.epsilon)
        self.rotary = RotaryPositions(self.positions, sizes.head_width, sizes.rotary_base)

    def forward(self, tokens: torch.Tensor, places: Places | None = None) -> torch.Tensor:
        x_BTC = self.word_embeddings(tokens)
        cosine_TR, sine_TR = self.rotary(tokens.shape[1], places)
        mask = attention_mask(tokens.shape[1], places, self.positions)
        for layer in self.h:
            x_BTC = layer(x_BTC, cosine_TR, sine_TR, places, mask)
        states_BTC: torch.Tensor = self.ln_f(x_BTC)
        return states_BTC


class Falcon(Decoder):
    """Falcon; see ``Decoder`` for arguments and results of forward. The head is the embedding's weight."""

    def __init__(self, sizes: FalconSizes, texts: int = 0) -> None:
        super().__init__(texts, sizes.key_value_heads, sizes.context_length)
        self.transformer = FalconBody(sizes, texts)
        self.lm_head = nn.Linear(sizes.width, sizes.vocabulary, bias=False)
        self.lm_head.weight = self.transformer.word_embeddings.weight
        init_normal(self)

    def read(self, tokens: torch.Tensor, places: Places | None = None) -> torch.Tensor:
        states_BTC: torch.Tensor = self.transformer(tokens, places)
        return states_BTC

    def logits_of(self, states: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.lm_head(states)
        return logits


def sizes_of_config(config: Mapping[str, Any]) -> dict[str, SizeValue]:
    """Return the sizes that a Hugging Face ``config.json`` names.

    Raises:
        InvalidArgument: a value that this architecture does not have, such as linear biases instead of rotation.
    """
    for key, wanted in (
        ("alibi", False), ("bias", False), ("parallel_attn", True), ("activation", "gelu"),
        ("tie_word_embeddings", True),
    ):  # fmt: skip
        require_value(config, key, wanted)
    is_new = bool(config.get("new_decoder_architecture", False))
    if not is_new:
        require_value(config, "multi_query", True)
    rotary = config.get("rope_parameters") or {}
    if rotary.get("rope_type", "default") != "default":
        raise InvalidArgument(f"config.json: rope_type is {rotary['rope_type']!r}; this model has 'default' only")
    context = int(config.get("max_position_embeddings", 2048))
    norms = int(config.get("num_ln_in_parallel_attn") or (2 if is_new else 1))
    return asdict(
        FalconSizes(
            width=int(config["hidden_size"]), layers=int(config["num_hidden_layers"]),
            heads=int(config["num_attention_heads"]),
            key_value_heads=int(config.get("num_kv_heads") or config["num_attention_heads"]) if is_new else 1,
            has_two_norms=norms == 2, vocabulary=int(config["vocab_size"]), context_length=context,
            prompt_length=usual_prompt(context), epsilon=float(config.get("layer_norm_epsilon", 1e-5)),
            rotary_base=float(rotary.get("rope_theta") or config.get("rope_theta") or 10000.0),
        )
    )  # fmt: skip


def config_of_sizes(sizes: Mapping[str, SizeValue]) -> dict[str, Any]:
    """Return the ``config.json`` of a model of these sizes."""
    known = FalconSizes(**sizes)  # type: ignore[arg-type]
    is_new = known.has_two_norms or known.key_value_heads > 1
    return {
        "architectures": ["FalconForCausalLM"], "model_type": "falcon", "hidden_size": known.width,
        "num_hidden_layers": known.layers, "num_attention_heads": known.heads, "num_kv_heads": known.key_value_heads,
        "new_decoder_architecture": is_new, "multi_query": not is_new, "parallel_attn": True, "bias": False,
        "num_ln_in_parallel_attn": (2 if known.has_two_norms else 1) if is_new else None, "alibi": False,
        "activation": "gelu", "vocab_size": known.vocabulary, "max_position_embeddings": known.context_length,
        "layer_norm_epsilon": known.epsilon, "tie_word_embeddings": True, "rope_theta": known.rotary_base,
        "rope_parameters": {"rope_theta": known.rotary_base, "rope_type": "default"},
    }  # fmt: skip


def build(**sizes: SizeValue) -> nn.Module:
    """Build the model that trains."""
    return Falcon(FalconSizes(**sizes), texts=0)  # type: ignore[arg-type]


def build_serving(texts: int, **sizes: SizeValue) -> nn.Module:
    """Build the model with caches for as many ``texts`` at once."""
    return Falcon(FalconSizes(**sizes), texts=texts)  # type: ignore[arg-type]


_SHARED: dict[str, SizeValue] = {"vocabulary": 65024, "context_length": 2048}
_40B = {"width": 8192, "layers": 60, "heads": 128, "key_value_heads": 8, "has_two_norms": True}

model(
    name="falcon",
    title="Falcon",
    task="language-modelling",
    licence="Apache-2.0",
    source="Almazrouei et al., The Falcon Series of Open Language Models (2023)",
    sizes=asdict(FalconSizes()),
    make_inputs=make_inputs,
    text_serving=TextServing(build_serving, context="context_length", prompt="prompt_length", vocabulary="vocabulary"),
    variants={
        "7b": Variant(_SHARED | {"width": 4544, "layers": 32, "heads": 71}, 6_921_720_704),
        "40b": Variant(_SHARED | _40B, 41_303_293_952),
    },
    hub=HubFormat(
        tables=(r"\.rotary\.",),
        architectures=("FalconForCausalLM",), sizes_of_config=sizes_of_config, config_of_sizes=config_of_sizes,
        prefix="transformer.", tied={"lm_head.weight": "transformer.word_embeddings.weight"},
        ignored=(r"rotary_emb\.inv_freq$",),
    ),
)(build)  # fmt: skip
