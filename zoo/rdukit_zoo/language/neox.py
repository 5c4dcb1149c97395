"""GPT-NeoX: rotary positions on a part of each head, attention and feed-forward side by side. GenSLM is one for codons.

Sources: Black et al., GPT-NeoX-20B (2022); Zvyagin et al., GenSLMs (2022). Parameters are named as Hugging Face writes
them to disk.

Axes: B batch, T tokens of a call, H heads, D width of a head, R width that is rotated, C width of the model.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import nn

from rdukit.errors import InvalidArgument
from rdukit_zoo.checkpoints.hub_format import HubFormat, require_value
from rdukit_zoo.language.attention import CachedAttention, Places, RotaryPositions, attention_mask, rotate
from rdukit_zoo.language.decoder import Decoder, check_divides, check_lengths, init_normal, make_inputs, usual_prompt
from rdukit_zoo.registry import SizeValue, TextServing, Variant, model

#: Name of an activation in ``config.json`` → torch's ``approximate``.
ACTIVATIONS: Final = {"gelu": "none", "gelu_fast": "tanh", "gelu_new": "tanh", "gelu_pytorch_tanh": "tanh"}


@dataclass(frozen=True, slots=True)
class NeoXSizes:
    """Sizes of a GPT-NeoX; the defaults train within a minute on a processor.

    Raises:
        InvalidArgument: they do not fit together.
    """

    width: int = 64
    layers: int = 2
    heads: int = 4
    feed_forward: int = 256
    vocabulary: int = 512
    #: Tokens of a text, and of the cache.
    context_length: int = 128
    #: Tokens of the prompt that is read at once.
    prompt_length: int = 64
    epsilon: float = 1e-5
    rotary_base: float = 10000.0
    #: Share of a head that is rotated.
    rotary_share: float = 0.25
    #: Whether attention and feed-forward read the same input; else the second reads the first's result.
    is_parallel: bool = True
    #: The feed-forward layers' activation: gelu, exact, or gelu_fast, by tanh.
    activation: str = "gelu"

    def __post_init__(self) -> None:
        check_lengths(self.context_length, self.prompt_length)
        check_divides(self.width, self.heads)
        if self.rotated < 2 or self.rotated % 2 or self.rotary_share > 1:
            raise InvalidArgument(
                f"rotary_share {self.rotary_share} of {self.width // self.heads} elements is "
                f"{self.rotated}; expected an "
                "even number from 2 on"
            )
        if self.activation not in ACTIVATIONS:
            raise InvalidArgument(f"activation {self.activation!r} is not valid; expected {', '.join(ACTIVATIONS)}")

    @property
    def rotated(self) -> int:
        """Elements of a head that are rotated."""
        return int(self.width // self.heads * self.rotary_share)


class NeoXAttention(nn.Module):
    """Self-attention; one projection gives each head its query, key and value side by side."""

    def __init__(self, sizes: NeoXSizes, texts: int) -> None:
        super().__init__()
        self.heads = sizes.heads
        self.query_key_value = nn.Linear(sizes.width, 3 * sizes.width)
        self.dense = nn.Linear(sizes.width, sizes.width)
        head_width = sizes.width // sizes.heads
        self.attention = CachedAttention(sizes.heads, sizes.heads, head_width, sizes.context_length, texts)

    def forward(
        self, x_BTC: torch.Tensor, cosine_TR: torch.Tensor, sine_TR: torch.Tensor, places: Places | None,
        mask: torch.Tensor | None,
    ) -> torch.Tensor:  # fmt: skip
        batch, count, _ = x_BTC.shape
        fused = self.query_key_value(x_BTC).view(batch, count, self.heads, -1).transpose(1, 2)
        query_BHTD, key_BHTD, value_BHTD = fused.chunk(3, -1)
        query_BHTD, key_BHTD = rotate(query_BHTD, cosine_TR, sine_TR), rotate(key_BHTD, cosine_TR, sine_TR)
        mixed: torch.Tensor = self.dense(self.attention(query_BHTD, key_BHTD, value_BHTD, places, mask))
        return mixed


class NeoXFeedForward(nn.Module):
    """Two linear layers with GELU between."""

    def __init__(self, sizes: NeoXSizes) -> None:
        super().__init__()
        self.approximate = ACTIVATIONS[sizes.activation]
        self.dense_h_to_4h = nn.Linear(sizes.width, sizes.feed_forward)
        self.dense_4h_to_h = nn.Linear(sizes.feed_forward, sizes.width)

    def forward(self, x_BTC: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.dense_4h_to_h(F.gelu(self.dense_h_to_4h(x_BTC), approximate=self.approximate))
        return made


class NeoXLayer(nn.Module):
    """Attention and feed-forward, each after a norm of its own."""

    def __init__(self, sizes: NeoXSizes, texts: int) -> None:
        super().__init__()
        self.is_parallel = sizes.is_parallel
        self.input_layernorm = nn.LayerNorm(sizes.width, sizes.epsilon)
        self.post_attention_layernorm = nn.LayerNorm(sizes.width, sizes.epsilon)
        self.attention, self.mlp = NeoXAttention(sizes, texts), NeoXFeedForward(sizes)

    def forward(
        self, x_BTC: torch.Tensor, cosine_TR: torch.Tensor, sine_TR: torch.Tensor, places: Places | None,
        mask: torch.Tensor | None,
    ) -> torch.Tensor:  # fmt: skip
        mixed_BTC = x_BTC + self.attention(self.input_layernorm(x_BTC), cosine_TR, sine_TR, places, mask)
        read_BTC = x_BTC if self.is_parallel else mixed_BTC
        made: torch.Tensor = mixed_BTC + self.mlp(self.post_attention_layernorm(read_BTC))
        return made


class NeoXBody(nn.Module):
    """The embedding, the layers and the final norm: tokens [B, T] → states [B, T, C]."""

    def __init__(self, sizes: NeoXSizes, texts: int) -> None:
        super().__init__()
        self.positions = sizes.context_length
        self.embed_in = nn.Embedding(sizes.vocabulary, sizes.width)
        self.layers = nn.ModuleList(NeoXLayer(sizes, texts) for _ in range(sizes.layers))
        self.final_layer_norm = nn.LayerNorm(sizes.width, sizes.epsilon)
        self.rotary = RotaryPositions(self.positions, sizes.rotated, sizes.rotary_base)

    def forward(self, tokens: torch.Tensor, places: Places | None = None) -> torch.Tensor:
        x_BTC = self.embed_in(tokens)
        cosine_TR, sine_TR = self.rotary(tokens.shape[1], places)
        mask = attention_mask(tokens.shape[1], places, self.positions)
        for layer in self.layers:
            x_BTC = layer(x_BTC, cosine_TR, sine_TR, places, mask)
        states_BTC: torch.Tensor = self.final_layer_norm(x_BTC)
        return states_BTC


class NeoX(Decoder):
    """GPT-NeoX; see ``Decoder`` for arguments and results of forward."""

    def __init__(self, sizes: NeoXSizes, texts: int = 0) -> None:
        super().__init__(texts, sizes.heads, sizes.context_length)
        self.gpt_neox = NeoXBody(sizes, texts)
        self.embed_out = nn.Linear(sizes.width, sizes.vocabulary, bias=False)
        init_normal(self)

    def read(self, tokens: torch.Tensor, places: Places | None = None) -> torch.Tensor:
        states_BTC: torch.Tensor = self.gpt_neox(tokens, places)
        return states_BTC

    def logits_of(self, states: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.embed_out(states)
        return logits


def sizes_of_config(config: Mapping[str, Any]) -> dict[str, SizeValue]:
    """Return the sizes that a Hugging Face ``config.json`` names.

    Raises:
        InvalidArgument: a value that this architecture does not have.
    """
    require_value(config, "attention_bias", True)
    require_value(config, "tie_word_embeddings", False)
    rotary = config.get("rope_parameters") or {}
    kind = rotary.get("rope_type") or (config.get("rope_scaling") or {}).get("type", "default")
    if kind != "default":
        raise InvalidArgument(f"config.json: rope_type is {kind!r}; this model has 'default' only")
    context = int(config["max_position_embeddings"])
    return asdict(
        NeoXSizes(
            width=int(config["hidden_size"]), layers=int(config["num_hidden_layers"]),
            heads=int(config["num_attention_heads"]), feed_forward=int(config["intermediate_size"]),
            vocabulary=int(config["vocab_size"]), context_length=context, prompt_length=usual_prompt(context),
            epsilon=float(config.get("layer_norm_eps", 1e-5)),
            rotary_base=float(rotary.get("rope_theta") or config.get("rotary_emb_base") or 10000.0),
            rotary_share=float(rotary.get("partial_rotary_factor") or config.get("rotary_pct") or 0.25),
            is_parallel=bool(config.get("use_parallel_residual", True)),
            activation=str(config.get("hidden_act", "gelu")),
        )
    )  # fmt: skip


def config_of_sizes(sizes: Mapping[str, SizeValue]) -> dict[str, Any]:
    """Return the ``config.json`` of a model of these sizes."""
    known = NeoXSizes(**sizes)  # type: ignore[arg-type]
    return {
        "architectures": ["GPTNeoXForCausalLM"], "model_type": "gpt_neox", "hidden_size": known.width,
        "num_hidden_layers": known.layers, "num_attention_heads": known.heads,
        "intermediate_size": known.feed_forward, "vocab_size": known.vocabulary,
        "max_position_embeddings": known.context_length, "layer_norm_eps": known.epsilon,
        "hidden_act": known.activation, "use_parallel_residual": known.is_parallel, "attention_bias": True,
        "tie_word_embeddings": False, "rotary_pct": known.rotary_share, "rotary_emb_base": known.rotary_base,
        "rope_parameters": {
            "rope_theta": known.rotary_base, "partial_rotary_factor": known.rotary_share, "rope_type": "default"
        },
    }  # fmt: skip


def build(**sizes: SizeValue) -> nn.Module:
    """Build the model that trains."""
    return NeoX(NeoXSizes(**sizes), texts=0)  # type: ignore[arg-type]


def build_serving(texts: int, **sizes: SizeValue) -> nn.Module:
    """Build the model with caches for as many ``texts`` at once."""
    return NeoX(NeoXSizes(**sizes), texts=texts)  # type: ignore[arg-type]


def _genslm(width: int, layers: int, heads: int, feed_forward: int, parameters: int) -> Variant:
    """Return a size of GenSLM, as its configurations have it.

    That of 250 million is called by another number, 244,464,576, than its sizes come to. That of 25 billion is left
    out, as no layer can be built: its 64 heads divide neither the width of its configuration, 8,196, nor 8,096, the
    width of an earlier one, to which the number in its name, 25,076,188,032, belongs.
    """
    sizes: dict[str, SizeValue] = {"width": width, "layers": layers, "heads": heads, "feed_forward": feed_forward}
    return Variant(sizes | {"vocabulary": 69, "context_length": 2048, "activation": "gelu_fast"}, parameters)


model(
    name="neox",
    title="GPT-NeoX; GenSLM reads codons with it",
    task="language-modelling",
    licence="Apache-2.0",
    source="Black et al., GPT-NeoX-20B (2022); Zvyagin et al., GenSLMs (2022)",
    sizes=asdict(NeoXSizes()),
    make_inputs=make_inputs,
    text_serving=TextServing(build_serving, context="context_length", prompt="prompt_length", vocabulary="vocabulary"),
    variants={
        "genslm-25m": _genslm(512, 8, 8, 2048, 25_290_752),
        "genslm-250m": _genslm(1840, 12, 16, 2048, 253_429_376),
        "genslm-2.5b": _genslm(3840, 28, 32, 4096, 2_533_931_008),
    },
    hub=HubFormat(
        tables=(r"\.rotary\.",),
        architectures=("GPTNeoXForCausalLM",), sizes_of_config=sizes_of_config, config_of_sizes=config_of_sizes,
        prefix="gpt_neox.", ignored=(r"attention\.(bias|masked_bias)$", r"rotary_emb\.inv_freq$"),
    ),
)(build)  # fmt: skip
