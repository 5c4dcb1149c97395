"""Bloom: linear biases (ALiBi) instead of positions, a norm after the embedding, one projection for each head's parts.

Sources: BigScience, BLOOM (2022); Press et al., Train Short, Test Long (2022). Parameters are named as Hugging Face
writes them to disk.

Axes: B batch, T tokens of a call, H heads, D width of a head, C width of the model.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from rdukit_zoo.checkpoints.hub_format import HubFormat, require_value
from rdukit_zoo.language.attention import CachedAttention, Places, alibi_slopes, attention_mask
from rdukit_zoo.language.decoder import Decoder, check_divides, check_lengths, init_normal, make_inputs, usual_prompt
from rdukit_zoo.registry import SizeValue, TextServing, Variant, model


@dataclass(frozen=True, slots=True)
class BloomSizes:
    """Sizes of a Bloom; the defaults train within a minute on a processor.

    Raises:
        InvalidArgument: they do not fit together.
    """

    width: int = 64
    layers: int = 2
    heads: int = 4
    vocabulary: int = 512
    #: Tokens of a text, and of the cache; no parameter depends on it.
    context_length: int = 128
    #: Tokens of the prompt that is read at once.
    prompt_length: int = 64
    epsilon: float = 1e-5

    def __post_init__(self) -> None:
        check_lengths(self.context_length, self.prompt_length)
        check_divides(self.width, self.heads)


class BloomAttention(nn.Module):
    """Self-attention; one projection gives each head its query, key and value side by side."""

    def __init__(self, sizes: BloomSizes, texts: int) -> None:
        super().__init__()
        self.heads = sizes.heads
        self.query_key_value = nn.Linear(sizes.width, 3 * sizes.width)
        self.dense = nn.Linear(sizes.width, sizes.width)
        head_width = sizes.width // sizes.heads
        self.attention = CachedAttention(sizes.heads, sizes.heads, head_width, sizes.context_length, texts)

    def forward(self, x_BTC: torch.Tensor, places: Places | None, mask: torch.Tensor | None) -> torch.Tensor:
        batch, count, _ = x_BTC.shape
        fused = self.query_key_value(x_BTC).view(batch, count, self.heads, 3, -1)
        query_BHTD, key_BHTD, value_BHTD = (fused[:, :, :, part].transpose(1, 2) for part in range(3))
        mixed: torch.Tensor = self.dense(self.attention(query_BHTD, key_BHTD, value_BHTD, places, mask))
        return mixed


class BloomFeedForward(nn.Module):
    """Two linear layers with GELU by tanh between."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.dense_h_to_4h, self.dense_4h_to_h = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x_BTC: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.dense_4h_to_h(F.gelu(self.dense_h_to_4h(x_BTC), approximate="tanh"))
        return made


class BloomLayer(nn.Module):
    """Attention and feed-forward, each after a norm, with a residual connection."""

    def __init__(self, sizes: BloomSizes, texts: int) -> None:
        super().__init__()
        self.input_layernorm = nn.LayerNorm(sizes.width, sizes.epsilon)
        self.self_attention = BloomAttention(sizes, texts)
        self.post_attention_layernorm = nn.LayerNorm(sizes.width, sizes.epsilon)
        self.mlp = BloomFeedForward(sizes.width)

    def forward(self, x_BTC: torch.Tensor, places: Places | None, mask: torch.Tensor | None) -> torch.Tensor:
        x_BTC = x_BTC + self.self_attention(self.input_layernorm(x_BTC), places, mask)
        made: torch.Tensor = x_BTC + self.mlp(self.post_attention_layernorm(x_BTC))
        return made


class BloomBody(nn.Module):
    """The embedding and its norm, the layers and the final norm: tokens [B, T] → states [B, T, C]."""

    def __init__(self, sizes: BloomSizes, texts: int) -> None:
        super().__init__()
        self.positions = sizes.context_length
        self.word_embeddings = nn.Embedding(sizes.vocabulary, sizes.width)
        self.word_embeddings_layernorm = nn.LayerNorm(sizes.width, sizes.epsilon)
        self.h = nn.ModuleList(BloomLayer(sizes, texts) for _ in range(sizes.layers))
        self.ln_f = nn.LayerNorm(sizes.width, sizes.epsilon)
        self.slopes_H: torch.Tensor
        self.register_buffer("slopes_H", alibi_slopes(sizes.heads))

    def forward(self, tokens: torch.Tensor, places: Places | None = None) -> torch.Tensor:
        x_BTC = self.word_embeddings_layernorm(self.word_embeddings(tokens))
        mask = attention_mask(tokens.shape[1], places, self.positions, slopes_H=self.slopes_H)
        for layer in self.h:
            x_BTC = layer(x_BTC, places, mask)
        states_BTC: torch.Tensor = self.ln_f(x_BTC)
        return states_BTC


class Bloom(Decoder):
    """Bloom; see ``Decoder`` for arguments and results of forward. The head is the embedding's weight."""

    def __init__(self, sizes: BloomSizes, texts: int = 0) -> None:
        super().__init__(texts, sizes.heads, sizes.context_length)
        self.transformer = BloomBody(sizes, texts)
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
        InvalidArgument: a value that this architecture does not have.
    """
    require_value(config, "apply_residual_connection_post_layernorm", False)
    require_value(config, "tie_word_embeddings", True)
    context = int(config.get("seq_length", 2048))
    return asdict(
        BloomSizes(
            width=int(config.get("hidden_size") or config["n_embed"]),
            layers=int(config.get("n_layer") or config["num_hidden_layers"]),
            heads=int(config.get("n_head") or config["num_attention_heads"]), vocabulary=int(config["vocab_size"]),
            context_length=context, prompt_length=usual_prompt(context),
            epsilon=float(config.get("layer_norm_epsilon", 1e-5)),
        )
    )  # fmt: skip


def config_of_sizes(sizes: Mapping[str, SizeValue]) -> dict[str, Any]:
    """Return the ``config.json`` of a model of these sizes."""
    known = BloomSizes(**sizes)  # type: ignore[arg-type]
    return {
        "architectures": ["BloomForCausalLM"], "model_type": "bloom", "hidden_size": known.width,
        "n_layer": known.layers, "n_head": known.heads, "vocab_size": known.vocabulary,
        "seq_length": known.context_length, "layer_norm_epsilon": known.epsilon,
        "apply_residual_connection_post_layernorm": False, "tie_word_embeddings": True,
    }  # fmt: skip


def build(**sizes: SizeValue) -> nn.Module:
    """Build the model that trains."""
    return Bloom(BloomSizes(**sizes), texts=0)  # type: ignore[arg-type]


def build_serving(texts: int, **sizes: SizeValue) -> nn.Module:
    """Build the model with caches for as many ``texts`` at once."""
    return Bloom(BloomSizes(**sizes), texts=texts)  # type: ignore[arg-type]


_SHARED: dict[str, SizeValue] = {"vocabulary": 250880, "context_length": 2048}

model(
    name="bloom",
    title="Bloom",
    task="language-modelling",
    licence="Apache-2.0",
    source="BigScience, BLOOM: A 176B-Parameter Open-Access Multilingual Language Model (2022)",
    sizes=asdict(BloomSizes()),
    make_inputs=make_inputs,
    text_serving=TextServing(build_serving, context="context_length", prompt="prompt_length", vocabulary="vocabulary"),
    variants={
        "560m": Variant(_SHARED | {"width": 1024, "layers": 24, "heads": 16}, 559_214_592),
        "176b": Variant(_SHARED | {"width": 14336, "layers": 70, "heads": 112}, 176_247_271_424),
    },
    hub=HubFormat(
        tables=(r"\.slopes_H$",),
        architectures=("BloomForCausalLM",), sizes_of_config=sizes_of_config, config_of_sizes=config_of_sizes,
        prefix="transformer.", tied={"lm_head.weight": "transformer.word_embeddings.weight"},
    ),
)(build)  # fmt: skip
