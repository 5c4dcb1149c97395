"""GPT-2: learned positions, a norm before each part, one projection to queries, keys and values, GELU by tanh.

Sources: Radford et al., Language Models are Unsupervised Multitask Learners (2019); the sizes of 13b are ours, since
its vendor published none. Parameters are named as Hugging Face writes them to disk.

Axes: B batch, T tokens of a call, C width of the model.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import nn

from rdukit_zoo.checkpoints.hub_format import HubFormat, require_value
from rdukit_zoo.language.attention import CachedAttention, Places, attention_mask, split_heads
from rdukit_zoo.language.decoder import Decoder, check_divides, check_lengths, init_normal, make_inputs, usual_prompt
from rdukit_zoo.registry import SizeValue, TextServing, Variant, model

EPSILON: Final = 1e-5


@dataclass(frozen=True, slots=True)
class Gpt2Sizes:
    """Sizes of a GPT-2; the defaults train within a minute on a processor.

    Raises:
        InvalidArgument: they do not fit together.
    """

    width: int = 64
    layers: int = 2
    heads: int = 4
    #: Width of the feed-forward layers; 0 for four times the width.
    feed_forward: int = 0
    vocabulary: int = 512
    #: Tokens of a text: as many positions are learned.
    context_length: int = 128
    #: Tokens of the prompt that is read at once.
    prompt_length: int = 64
    #: Share of elements that training drops from embeddings, attention's and feed-forward's results.
    dropout: float = 0.0

    def __post_init__(self) -> None:
        check_lengths(self.context_length, self.prompt_length)
        check_divides(self.width, self.heads)

    @property
    def inner(self) -> int:
        """Width of the feed-forward layers."""
        return self.feed_forward or 4 * self.width


class Gpt2Attention(nn.Module):
    """Self-attention; queries, keys and values by one projection."""

    def __init__(self, sizes: Gpt2Sizes, texts: int) -> None:
        super().__init__()
        self.heads = sizes.heads
        self.c_attn = nn.Linear(sizes.width, 3 * sizes.width)
        self.c_proj = nn.Linear(sizes.width, sizes.width)
        self.dropout = nn.Dropout(sizes.dropout)
        head_width = sizes.width // sizes.heads
        self.attention = CachedAttention(sizes.heads, sizes.heads, head_width, sizes.context_length, texts)

    def forward(self, x_BTC: torch.Tensor, places: Places | None, mask: torch.Tensor | None) -> torch.Tensor:
        query, key, value = (split_heads(part, self.heads) for part in self.c_attn(x_BTC).chunk(3, -1))
        mixed: torch.Tensor = self.dropout(self.c_proj(self.attention(query, key, value, places, mask)))
        return mixed


class Gpt2FeedForward(nn.Module):
    """Two linear layers with GELU between."""

    def __init__(self, sizes: Gpt2Sizes) -> None:
        super().__init__()
        self.c_fc, self.c_proj = nn.Linear(sizes.width, sizes.inner), nn.Linear(sizes.inner, sizes.width)
        self.dropout = nn.Dropout(sizes.dropout)

    def forward(self, x_BTC: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.dropout(self.c_proj(F.gelu(self.c_fc(x_BTC), approximate="tanh")))
        return made


class Gpt2Layer(nn.Module):
    """Attention and feed-forward, each after a norm, with a residual connection."""

    def __init__(self, sizes: Gpt2Sizes, texts: int) -> None:
        super().__init__()
        self.ln_1, self.attn = nn.LayerNorm(sizes.width, EPSILON), Gpt2Attention(sizes, texts)
        self.ln_2, self.mlp = nn.LayerNorm(sizes.width, EPSILON), Gpt2FeedForward(sizes)

    def forward(self, x_BTC: torch.Tensor, places: Places | None, mask: torch.Tensor | None) -> torch.Tensor:
        x_BTC = x_BTC + self.attn(self.ln_1(x_BTC), places, mask)
        made: torch.Tensor = x_BTC + self.mlp(self.ln_2(x_BTC))
        return made


class Gpt2Body(nn.Module):
    """The embeddings, the layers and the final norm: tokens [B, T] → states [B, T, C]."""

    def __init__(self, sizes: Gpt2Sizes, texts: int) -> None:
        super().__init__()
        self.positions = sizes.context_length
        self.wte = nn.Embedding(sizes.vocabulary, sizes.width)
        self.wpe = nn.Embedding(sizes.context_length, sizes.width)
        self.dropout = nn.Dropout(sizes.dropout)
        self.h = nn.ModuleList(Gpt2Layer(sizes, texts) for _ in range(sizes.layers))
        self.ln_f = nn.LayerNorm(sizes.width, EPSILON)

    def forward(self, tokens: torch.Tensor, places: Places | None = None) -> torch.Tensor:
        count = tokens.shape[1]
        positions = torch.arange(count) if places is None else places.positions
        x_BTC = self.dropout(self.wte(tokens) + self.wpe(positions))
        mask = attention_mask(count, places, self.positions)
        for layer in self.h:
            x_BTC = layer(x_BTC, places, mask)
        states_BTC: torch.Tensor = self.ln_f(x_BTC)
        return states_BTC


class Gpt2(Decoder):
    """GPT-2; see ``Decoder`` for arguments and results of forward. The head is the embedding's weight."""

    def __init__(self, sizes: Gpt2Sizes, texts: int = 0) -> None:
        super().__init__(texts, sizes.heads, sizes.context_length)
        self.transformer = Gpt2Body(sizes, texts)
        self.lm_head = nn.Linear(sizes.width, sizes.vocabulary, bias=False)
        self.lm_head.weight = self.transformer.wte.weight
        init_normal(self)
        for name, parameter in self.named_parameters():
            if name.endswith("c_proj.weight"):
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * sizes.layers))

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
    for key, wanted in (
        ("activation_function", "gelu_new"), ("layer_norm_epsilon", EPSILON), ("scale_attn_weights", True),
        ("scale_attn_by_inverse_layer_idx", False), ("tie_word_embeddings", True),
    ):  # fmt: skip
        require_value(config, key, wanted)
    context = int(config.get("n_positions", config.get("n_ctx", 1024)))
    return asdict(
        Gpt2Sizes(
            width=int(config["n_embd"]), layers=int(config["n_layer"]), heads=int(config["n_head"]),
            feed_forward=int(config.get("n_inner") or 0), vocabulary=int(config["vocab_size"]),
            context_length=context, prompt_length=usual_prompt(context),
            dropout=float(config.get("resid_pdrop", 0.1)),
        )
    )  # fmt: skip


def config_of_sizes(sizes: Mapping[str, SizeValue]) -> dict[str, Any]:
    """Return the ``config.json`` of a model of these sizes."""
    known = Gpt2Sizes(**sizes)  # type: ignore[arg-type]
    return {
        "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_embd": known.width, "n_layer": known.layers,
        "n_head": known.heads, "n_inner": None if known.inner == 4 * known.width else known.inner,
        "vocab_size": known.vocabulary,
        "n_positions": known.context_length, "layer_norm_epsilon": EPSILON, "activation_function": "gelu_new",
        "resid_pdrop": known.dropout, "embd_pdrop": known.dropout, "attn_pdrop": 0.0, "tie_word_embeddings": True,
    }  # fmt: skip


def build(**sizes: SizeValue) -> nn.Module:
    """Build the model that trains."""
    return Gpt2(Gpt2Sizes(**sizes), texts=0)  # type: ignore[arg-type]


def build_serving(texts: int, **sizes: SizeValue) -> nn.Module:
    """Build the model with caches for as many ``texts`` at once."""
    return Gpt2(Gpt2Sizes(**sizes), texts=texts)  # type: ignore[arg-type]


def _variant(
    width: int, layers: int, heads: int, parameters: int, vocabulary: int = 50257, context_length: int = 1024
) -> Variant:
    sizes: dict[str, SizeValue] = {"width": width, "layers": layers, "heads": heads, "vocabulary": vocabulary}
    return Variant(sizes | {"context_length": context_length, "dropout": 0.1}, parameters)


model(
    name="gpt2",
    title="GPT-2",
    task="language-modelling",
    licence="Apache-2.0",
    source="Radford et al., Language Models are Unsupervised Multitask Learners (2019)",
    sizes=asdict(Gpt2Sizes()),
    make_inputs=make_inputs,
    text_serving=TextServing(build_serving, context="context_length", prompt="prompt_length", vocabulary="vocabulary"),
    variants={
        "small": _variant(768, 12, 12, 124_439_808),
        "medium": _variant(1024, 24, 16, 354_823_168),
        "large": _variant(1280, 36, 20, 774_030_080),
        "xl": _variant(1600, 48, 25, 1_557_611_200),
        "1.5b": _variant(1600, 48, 25, 1_557_616_000, vocabulary=50260),
        "13b": _variant(5120, 40, 40, 12_884_843_520, context_length=8192),
    },
    hub=HubFormat(
        architectures=("GPT2LMHeadModel",), sizes_of_config=sizes_of_config, config_of_sizes=config_of_sizes,
        prefix="transformer.", tied={"lm_head.weight": "transformer.wte.weight"},
        ignored=(r"\.attn\.(bias|masked_bias)$",), transposed=(r"\.(c_attn|c_proj|c_fc)\.weight$",),
    ),
    written_out=lambda sizes: {**sizes, "feed_forward": Gpt2Sizes(**sizes).inner},
)(build)  # fmt: skip
