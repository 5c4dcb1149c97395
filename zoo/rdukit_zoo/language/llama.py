"""Llama 2 and 3, Mistral, DeepSeek Coder: RMS norms, rotary positions, gated feed-forward, grouped queries, no biases.

Positions rotate the halves of a head.
Sources: Touvron et al., Llama 2 (2023); Llama Team, The Llama 3 Herd of Models (2024); Jiang et al., Mistral 7B (2023);
Guo et al., DeepSeek-Coder (2024). Parameters are named as Hugging Face writes them to disk.

Axes: B batch, T tokens of a call, H heads, G heads of keys and values, R width that is rotated, C width of the model.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import nn

from rdukit.errors import InvalidArgument
from rdukit_zoo.checkpoints.hub_format import HubFormat, require_value
from rdukit_zoo.language.attention import (
    CachedAttention,
    Places,
    RotaryPositions,
    RotaryScaling,
    attention_mask,
    rotate,
    split_heads,
)
from rdukit_zoo.language.decoder import Decoder, check_divides, check_lengths, init_normal, make_inputs, usual_prompt
from rdukit_zoo.registry import SizeValue, TextServing, Variant, model

#: Kind of rotary scaling → how many of its sizes count.
ROTARY_SIZES: Final = {"default": 0, "linear": 1, "llama3": 4}


@dataclass(frozen=True, slots=True)
class LlamaSizes:
    """Sizes of a Llama; the defaults train within a minute on a processor.

    Raises:
        InvalidArgument: they do not fit together.
    """

    width: int = 64
    layers: int = 2
    heads: int = 4
    #: Heads of keys and values, each read by as many query heads; 0 for as many as there are query heads.
    key_value_heads: int = 2
    #: Width of a head; 0 for width / heads.
    head_width: int = 0
    feed_forward: int = 192
    vocabulary: int = 512
    #: Tokens of a text, and of the cache.
    context_length: int = 128
    #: Tokens of the prompt that is read at once.
    prompt_length: int = 64
    #: Tokens that one sees, itself included; 0 for all before it.
    window: int = 0
    epsilon: float = 1e-5
    #: Whether the head is the embedding's weight.
    is_tied: bool = True
    rotary_base: float = 10000.0
    rotary_kind: str = "default"
    rotary_factor: float = 1.0
    rotary_low_factor: float = 1.0
    rotary_high_factor: float = 4.0
    rotary_original_length: int = 8192

    def __post_init__(self) -> None:
        check_lengths(self.context_length, self.prompt_length)
        if not self.head_width:
            check_divides(self.width, self.heads)
        if self.width_of_head % 2:
            raise InvalidArgument(
                f"a head has {self.width_of_head} elements; expected an even number, because elements are rotated in "
                "pairs"
            )
        if self.heads % self.groups:
            raise InvalidArgument(f"key_value_heads {self.groups} does not divide heads {self.heads}")
        if self.rotary_kind not in ROTARY_SIZES:
            raise InvalidArgument(
                f"rotary_kind is {self.rotary_kind!r}; expected one of {', '.join(ROTARY_SIZES)}; model 'decoder' has "
                "others"
            )
        self.rotary_scaling()

    @property
    def width_of_head(self) -> int:
        """Width of a head, in elements."""
        return self.head_width or self.width // self.heads

    @property
    def groups(self) -> int:
        """Heads of keys and values."""
        return self.key_value_heads or self.heads

    def rotary_scaling(self) -> RotaryScaling:
        """Return the scaling of rotary positions."""
        return RotaryScaling(
            self.rotary_kind, self.rotary_factor, self.rotary_low_factor, self.rotary_high_factor,
            self.rotary_original_length,
        )  # fmt: skip


class RootMeanSquareNorm(nn.Module):
    """Divides by the root of the mean square over the last axis, in f32; a weight per element."""

    def __init__(self, width: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.epsilon = epsilon

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, (x.shape[-1],), self.weight, self.epsilon)


class LlamaAttention(nn.Module):
    """Self-attention with rotary positions."""

    def __init__(self, sizes: LlamaSizes, texts: int) -> None:
        super().__init__()
        self.heads, self.groups, inner = sizes.heads, sizes.groups, sizes.width_of_head
        self.q_proj = nn.Linear(sizes.width, sizes.heads * inner, bias=False)
        self.k_proj = nn.Linear(sizes.width, sizes.groups * inner, bias=False)
        self.v_proj = nn.Linear(sizes.width, sizes.groups * inner, bias=False)
        self.o_proj = nn.Linear(sizes.heads * inner, sizes.width, bias=False)
        self.attention = CachedAttention(sizes.heads, sizes.groups, inner, sizes.context_length, texts)

    def forward(
        self, x_BTC: torch.Tensor, cosine_TR: torch.Tensor, sine_TR: torch.Tensor, places: Places | None,
        mask: torch.Tensor | None,
    ) -> torch.Tensor:  # fmt: skip
        query = rotate(split_heads(self.q_proj(x_BTC), self.heads), cosine_TR, sine_TR)
        key = rotate(split_heads(self.k_proj(x_BTC), self.groups), cosine_TR, sine_TR)
        value = split_heads(self.v_proj(x_BTC), self.groups)
        mixed: torch.Tensor = self.o_proj(self.attention(query, key, value, places, mask))
        return mixed


class LlamaFeedForward(nn.Module):
    """The gated feed-forward part of a layer."""

    def __init__(self, sizes: LlamaSizes) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(sizes.width, sizes.feed_forward, bias=False)
        self.up_proj = nn.Linear(sizes.width, sizes.feed_forward, bias=False)
        self.down_proj = nn.Linear(sizes.feed_forward, sizes.width, bias=False)

    def forward(self, x_BTC: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.down_proj(F.silu(self.gate_proj(x_BTC)) * self.up_proj(x_BTC))
        return made


class LlamaLayer(nn.Module):
    """Attention and feed-forward, each after a norm, with a residual connection."""

    def __init__(self, sizes: LlamaSizes, texts: int) -> None:
        super().__init__()
        self.input_layernorm = RootMeanSquareNorm(sizes.width, sizes.epsilon)
        self.self_attn = LlamaAttention(sizes, texts)
        self.post_attention_layernorm = RootMeanSquareNorm(sizes.width, sizes.epsilon)
        self.mlp = LlamaFeedForward(sizes)

    def forward(
        self, x_BTC: torch.Tensor, cosine_TR: torch.Tensor, sine_TR: torch.Tensor, places: Places | None,
        mask: torch.Tensor | None,
    ) -> torch.Tensor:  # fmt: skip
        x_BTC = x_BTC + self.self_attn(self.input_layernorm(x_BTC), cosine_TR, sine_TR, places, mask)
        made: torch.Tensor = x_BTC + self.mlp(self.post_attention_layernorm(x_BTC))
        return made


class LlamaBody(nn.Module):
    """The embedding, the layers and the final norm: tokens [B, T] → states [B, T, C]."""

    def __init__(self, sizes: LlamaSizes, texts: int) -> None:
        super().__init__()
        self.window, self.positions = sizes.window, sizes.context_length
        self.embed_tokens = nn.Embedding(sizes.vocabulary, sizes.width)
        self.layers = nn.ModuleList(LlamaLayer(sizes, texts) for _ in range(sizes.layers))
        self.norm = RootMeanSquareNorm(sizes.width, sizes.epsilon)
        self.rotary = RotaryPositions(self.positions, sizes.width_of_head, sizes.rotary_base, sizes.rotary_scaling())

    def forward(self, tokens: torch.Tensor, places: Places | None = None) -> torch.Tensor:
        x_BTC, count = self.embed_tokens(tokens), tokens.shape[1]
        cosine_TR, sine_TR = self.rotary(count, places)
        mask = attention_mask(count, places, self.positions, self.window)
        for layer in self.layers:
            x_BTC = layer(x_BTC, cosine_TR, sine_TR, places, mask)
        states_BTC: torch.Tensor = self.norm(x_BTC)
        return states_BTC


def sizes_of_config(config: Mapping[str, Any]) -> dict[str, SizeValue]:
    """Return the sizes that a Hugging Face ``config.json`` names.

    Raises:
        InvalidArgument: a value that this architecture does not have.
    """
    require_value(config, "hidden_act", "silu")
    require_value(config, "attention_bias", False)
    require_value(config, "mlp_bias", False)
    rotary = config.get("rope_parameters") or config.get("rope_scaling") or {}
    heads = int(config["num_attention_heads"])
    return asdict(
        LlamaSizes(
            width=int(config["hidden_size"]), layers=int(config["num_hidden_layers"]), heads=heads,
            key_value_heads=int(config.get("num_key_value_heads") or heads),
            head_width=int(config.get("head_dim") or 0), feed_forward=int(config["intermediate_size"]),
            vocabulary=int(config["vocab_size"]), context_length=int(config["max_position_embeddings"]),
            prompt_length=usual_prompt(int(config["max_position_embeddings"])),
            window=int(config.get("sliding_window") or 0), epsilon=float(config.get("rms_norm_eps", 1e-6)),
            is_tied=bool(config.get("tie_word_embeddings", False)),
            rotary_base=float(rotary.get("rope_theta") or config.get("rope_theta") or 10000.0),
            rotary_kind=str(rotary.get("rope_type") or rotary.get("type") or "default"),
            rotary_factor=float(rotary.get("factor", 1.0)), rotary_low_factor=float(rotary.get("low_freq_factor", 1.0)),
            rotary_high_factor=float(rotary.get("high_freq_factor", 4.0)),
            rotary_original_length=int(rotary.get("original_max_position_embeddings", 8192)),
        )
    )  # fmt: skip


def config_of_sizes(sizes: Mapping[str, SizeValue]) -> dict[str, Any]:
    """Return the ``config.json`` of a model of these sizes; with a window that of Mistral, else of Llama."""
    known = LlamaSizes(**sizes)  # type: ignore[arg-type]
    rotary: dict[str, Any] = {"rope_theta": known.rotary_base, "rope_type": known.rotary_kind}
    if known.rotary_kind != "default":
        rotary["factor"] = known.rotary_factor
    if known.rotary_kind == "llama3":
        rotary |= {
            "low_freq_factor": known.rotary_low_factor, "high_freq_factor": known.rotary_high_factor,
            "original_max_position_embeddings": known.rotary_original_length,
        }  # fmt: skip
    kind = "mistral" if known.window else "llama"
    return {
        "architectures": ["MistralForCausalLM" if known.window else "LlamaForCausalLM"], "model_type": kind,
        "hidden_size": known.width, "num_hidden_layers": known.layers, "num_attention_heads": known.heads,
        "num_key_value_heads": known.groups, "head_dim": known.width_of_head, "intermediate_size": known.feed_forward,
        "vocab_size": known.vocabulary, "max_position_embeddings": known.context_length,
        "rms_norm_eps": known.epsilon, "tie_word_embeddings": known.is_tied, "hidden_act": "silu",
        "rope_parameters": rotary, "rope_theta": known.rotary_base,
        **({"sliding_window": known.window} if known.window else {"attention_bias": False, "mlp_bias": False}),
    }  # fmt: skip


def written_out(sizes: Mapping[str, SizeValue]) -> dict[str, SizeValue]:
    """Return the sizes with defaults filled in, without sizes of rotary positions that have no effect."""
    known = LlamaSizes(**sizes)  # type: ignore[arg-type]
    found = asdict(replace(known, key_value_heads=known.groups, head_width=known.width_of_head))
    unused = ROTARY_SIZES[known.rotary_kind]
    for name in ("rotary_factor", "rotary_low_factor", "rotary_high_factor", "rotary_original_length")[unused:]:
        del found[name]
    return found


HUB_FORMAT = HubFormat(
    tables=(r"\.rotary\.",),
    architectures=("LlamaForCausalLM", "MistralForCausalLM"),
    sizes_of_config=sizes_of_config,
    config_of_sizes=config_of_sizes,
    prefix="model.",
    tied={"lm_head.weight": "model.embed_tokens.weight"},
    ignored=(r"rotary_emb\.inv_freq$",),
)

_LLAMA_2: dict[str, SizeValue] = {"vocabulary": 32000, "context_length": 4096, "is_tied": False}
_LLAMA_3: dict[str, SizeValue] = {
    "vocabulary": 128256,
    "context_length": 8192,
    "is_tied": False,
    "rotary_base": 500000.0,
}
_LLAMA_3_1 = _LLAMA_3 | {"context_length": 131072, "rotary_kind": "llama3", "rotary_factor": 8.0}
_DEEPSEEK: dict[str, SizeValue] = {
    "vocabulary": 32256, "context_length": 16384, "is_tied": False, "rotary_base": 100000.0, "rotary_kind": "linear",
    "rotary_factor": 4.0, "epsilon": 1e-6,
}  # fmt: skip


def _wide(width: int, layers: int, heads: int, groups: int, feed_forward: int) -> dict[str, SizeValue]:
    return {"width": width, "layers": layers, "heads": heads, "key_value_heads": groups, "feed_forward": feed_forward}


_7B, _70B = _wide(4096, 32, 32, 32, 11008), _wide(8192, 80, 64, 8, 28672)
_8B = _wide(4096, 32, 32, 8, 14336)


def build_serving(texts: int, **sizes: SizeValue) -> nn.Module:
    """Build the model with caches for as many ``texts`` at once."""
    return Llama(LlamaSizes(**sizes), texts=texts)  # type: ignore[arg-type]


def build(**sizes: SizeValue) -> nn.Module:
    """Build the model that trains."""
    return Llama(LlamaSizes(**sizes), texts=0)  # type: ignore[arg-type]


model(
    name="llama",
    title="Llama 2 and 3, Mistral, DeepSeek Coder",
    task="language-modelling",
    licence="Apache-2.0",
    source="Touvron et al., Llama 2 (2023); Jiang et al., Mistral 7B (2023); Guo et al., DeepSeek-Coder (2024)",
    sizes=asdict(LlamaSizes()),
    make_inputs=make_inputs,
    text_serving=TextServing(build_serving, context="context_length", prompt="prompt_length", vocabulary="vocabulary"),
    variants={
        "110m": Variant(
            _wide(768, 12, 12, 12, 2048) | {"vocabulary": 32000, "context_length": 512, "prompt_length": 128},
            109_529_856,
        ),
        "llama-2-7b": Variant(_7B | _LLAMA_2, 6_738_415_616),
        "llama-2-13b": Variant(_wide(5120, 40, 40, 40, 13824) | _LLAMA_2, 13_015_864_320),
        "llama-2-70b": Variant(_70B | _LLAMA_2, 68_976_648_192),
        "llama-3-8b": Variant(_8B | _LLAMA_3, 8_030_261_248),
        "llama-3-70b": Variant(_70B | _LLAMA_3, 70_553_706_496),
        "llama-3.1-8b": Variant(_8B | _LLAMA_3_1, 8_030_261_248),
        "llama-3.1-70b": Variant(_70B | _LLAMA_3_1, 70_553_706_496),
        "mistral-7b-v0.1": Variant(_8B | _LLAMA_2 | {"context_length": 32768, "window": 4096}, 7_241_732_096),
        "mistral-7b-v0.2": Variant(_8B | _LLAMA_2 | {"context_length": 32768, "rotary_base": 1e6}, 7_241_732_096),
        "deepseek-coder-1.3b": Variant(_wide(2048, 24, 16, 16, 5504) | _DEEPSEEK, 1_346_471_936),
        "deepseek-coder-6.7b": Variant(_7B | _DEEPSEEK, 6_740_512_768),
        "deepseek-coder-33b": Variant(_wide(7168, 62, 56, 8, 19200) | _DEEPSEEK, 33_342_991_360),
    },
    hub=HUB_FORMAT,
    written_out=written_out,
)(build)


class Llama(Decoder):
    """Llama; see ``Decoder`` for arguments and results of forward."""

    def __init__(self, sizes: LlamaSizes, texts: int = 0) -> None:
        super().__init__(texts, sizes.groups, sizes.context_length)
        self.model = LlamaBody(sizes, texts)
        self.lm_head = nn.Linear(sizes.width, sizes.vocabulary, bias=False)
        if sizes.is_tied:
            self.lm_head.weight = self.model.embed_tokens.weight
        init_normal(self)

    def read(self, tokens: torch.Tensor, places: Places | None = None) -> torch.Tensor:
        states_BTC: torch.Tensor = self.model(tokens, places)
        return states_BTC

    def logits_of(self, states: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.lm_head(states)
        return logits
