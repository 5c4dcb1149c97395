"""Families of decoders: a table of their differences from Llama, the same for configurations, names and arithmetic.

Deciding only: no torch. ``configured`` builds a module of the differences, ``family_configs`` reads ``config.json``.

Sources: the published configurations and reports of Qwen 2 to 3, Gemma 1 to 3, Phi 1 to 4, SmolLM3, OLMo 2, Granite 3,
StarCoder 2, Mixtral, OPT and Command R.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

#: Where norms stand → of attention and feed-forward each: the norm of what it reads, of its result, and of the sum.
PLACEMENTS: Final[Mapping[str, tuple[tuple[str, str, str], tuple[str, str, str]]]] = {
    "before": (("input_layernorm", "", ""), ("post_attention_layernorm", "", "")),
    "results": (("", "post_attention_layernorm", ""), ("", "post_feedforward_layernorm", "")),
    "both": (
        ("input_layernorm", "post_attention_layernorm", ""),
        ("pre_feedforward_layernorm", "post_feedforward_layernorm", ""),
    ),
    "sums": (("", "", "input_layernorm"), ("", "", "post_attention_layernorm")),
    # One norm: attention and feed-forward read the same, and both results are added at once.
    "parallel": (("input_layernorm", "", ""), ("", "", "")),
}
#: Kinds of norms: by the root of the mean square, the same with 1 added to the weight, or layer norms.
NORMS: Final = ("rms", "rms_plus_one", "layer", "layer_without_bias")
#: Norms of queries and keys: none; of each head, with a weight for all heads or for each; of all heads together.
HEAD_NORMS: Final = ("none", "shared", "each", "whole")
#: How tokens choose experts: by the shares of a softmax over all; by a softmax over the chosen ones, of experts that
#: are limited and have biases; by groups of experts, rated by a softmax or by sigmoids.
ROUTERS: Final = ("shares", "sinks", "softmax", "sigmoid")
#: Linear layers that may have biases: queries, keys and values; attention's result; feed-forward; head.
BIASED: Final = ("qkv", "output", "feed_forward", "head")
#: Marks a size whose value is the family's.
OF_FAMILY: Final = "family"

_LLAMA_KEYS: Final[Mapping[str, str]] = {
    "width": "hidden_size", "layers": "num_hidden_layers", "heads": "num_attention_heads",
    "key_value_heads": "num_key_value_heads", "head_width": "head_dim", "feed_forward": "intermediate_size",
    "vocabulary": "vocab_size", "context_length": "max_position_embeddings", "epsilon": "rms_norm_eps",
    "is_tied": "tie_word_embeddings", "activation": "hidden_act",
}  # fmt: skip
_LLAMA_BIASES: Final[Mapping[str, str | bool]] = {
    "qkv": "attention_bias", "output": "attention_bias", "feed_forward": "mlp_bias",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Family:
    """A family's differences from Llama.

    ``keys`` maps sizes to keys of ``config.json``, ``absent`` keys to the values that transformers uses if the file
    lacks them. ``biases`` maps places of ``BIASED`` to whether they have one, or to the key that says it.
    """

    title: str
    #: Name in ``architectures`` of ``config.json``.
    architecture: str
    #: ``model_type`` of ``config.json``, under which the model is served.
    model_type: str
    norm: str = "rms"
    placement: str = "before"
    #: The key that says whether norms stand before (true) or after the sums (false).
    placement_key: str = ""
    head_norms: str = "none"
    #: The key that says whether there are ``head_norms``; without one there are.
    head_norms_key: str = ""
    biases: Mapping[str, str | bool] = field(default_factory=lambda: _LLAMA_BIASES)
    #: Whether the feed-forward part multiplies by an activated gate; else it has two layers.
    is_gated: bool = True
    #: Whether one weight holds queries, keys and values, and one the gate and the layer that it multiplies.
    is_fused: bool = False
    #: Whether embeddings are multiplied by √width.
    scales_embedding: bool = False
    #: Positions that are added: learned ones begin at this row of their table; -1 for rotary positions.
    learned_from: int = -1
    #: Whether rotary angles belong to neighbours instead of halves of a head.
    is_interleaved: bool = False
    #: How window layers are found where ``layer_types`` does not list them: all; from ``max_window_layers`` on; all
    #: but each second one; all but each ``sliding_window_pattern``-th one.
    window_layers: str = "all"
    #: The key that must be true for windows to count; without one they do.
    window_key: str = ""
    #: Whether the layers without windows have rotary positions of their own base and scaling.
    has_local_rotary: bool = False
    #: Whether some layers have no positions: ``no_rope_layers``.
    has_bare_layers: bool = False
    #: Whether layers have experts; ``mlp_only_layers`` and ``decoder_sparse_step`` name those that have none.
    has_experts: bool = False
    #: Name in ``ROUTERS``.
    router: str = "shares"
    #: Whether each head has a sink, which takes a share of its softmax.
    has_sinks: bool = False
    #: Whether one latent vector per token, which is cached, gives the keys and values of all heads.
    is_latent: bool = False
    #: Whether the shares of the chosen experts sum to 1, or the key that says it.
    normalizes_experts: str | bool = True
    keys: Mapping[str, str] = field(default_factory=dict)
    absent: Mapping[str, Any] = field(default_factory=dict)
    #: Keys and the only value that is computed.
    required: Mapping[str, Any] = field(default_factory=dict)
    #: Our parts of names ↔ those on disk, applied in this order when a file is read.
    names: tuple[tuple[str, str], ...] = ()

    def key_of(self, size: str) -> str:
        """Return the key of ``config.json`` that holds a size; "" where none does."""
        return self.keys[size] if size in self.keys else _LLAMA_KEYS.get(size, "")

    @property
    def sizes_with_keys(self) -> tuple[str, ...]:
        """Return the sizes that a key holds as they are."""
        return tuple(size for size in {**_LLAMA_KEYS, **self.keys} if self.key_of(size))


_COMMON: Final[dict[str, Any]] = {
    "hidden_act": "silu", "rms_norm_eps": 1e-6, "tie_word_embeddings": False, "rope_theta": 10000.0,
}  # fmt: skip
_GEMMA: Final[dict[str, Any]] = _COMMON | {
    "tie_word_embeddings": True, "head_dim": 256, "max_position_embeddings": 8192,
    "hidden_activation": "gelu_pytorch_tanh", "hidden_act": "gelu_pytorch_tanh",
}  # fmt: skip
_GEMMA_CAPS: Final[dict[str, str]] = {
    "activation": "hidden_activation", "window": "sliding_window", "attention_scale": "query_pre_attn_scalar",
    "attention_cap": "attn_logit_softcapping", "logit_cap": "final_logit_softcapping",
}  # fmt: skip
_WINDOW: Final[dict[str, str]] = {"window": "sliding_window"}
_QWEN: Final[dict[str, Any]] = _COMMON | {
    "sliding_window": 4096, "max_window_layers": 28, "max_position_embeddings": 32768,
}  # fmt: skip
_LATENT: Final[dict[str, str]] = {
    "key_value_heads": "", "head_width": "qk_nope_head_dim", "latent": "kv_lora_rank", "query_latent": "q_lora_rank",
    "rotated_width": "qk_rope_head_dim", "value_width": "v_head_dim", "experts": "n_routed_experts",
    "experts_per_token": "num_experts_per_tok", "expert_feed_forward": "moe_intermediate_size",
    "shared_experts": "n_shared_experts", "expert_groups": "n_group", "expert_groups_chosen": "topk_group",
    "expert_scale": "routed_scaling_factor",
}  # fmt: skip
_DEEPSEEK: Final[dict[str, Any]] = _COMMON | {
    "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "mlp_bias": False, "attention_bias": False,
}  # fmt: skip
_LAYER: Final[dict[str, str]] = {"epsilon": "layer_norm_eps"}

#: Families by the name that the size ``family`` has.
FAMILIES: Final[Mapping[str, Family]] = {
    "llama": Family(
        "Llama with biases or scaled rotary positions", "LlamaForCausalLM", "llama",
        absent=_COMMON | {"max_position_embeddings": 2048},
    ),
    "mistral": Family(
        "Mistral with scaled rotary positions", "MistralForCausalLM", "mistral", biases={}, keys=_WINDOW,
        absent=_COMMON | {"sliding_window": 4096, "num_key_value_heads": 8, "max_position_embeddings": 131072},
    ),
    "qwen2": Family(
        "Qwen 2, Qwen 2.5", "Qwen2ForCausalLM", "qwen2", biases={"qkv": True}, keys=_WINDOW,
        window_key="use_sliding_window", window_layers="late", absent=_QWEN,
    ),
    "qwen3": Family(
        "Qwen 3", "Qwen3ForCausalLM", "qwen3", head_norms="shared",
        biases={"qkv": "attention_bias", "output": "attention_bias"}, keys=_WINDOW,
        window_key="use_sliding_window", window_layers="late", absent=_QWEN | {"head_dim": 128},
    ),
    "qwen3_moe": Family(
        "Qwen 3 with experts", "Qwen3MoeForCausalLM", "qwen3_moe", head_norms="shared", has_experts=True,
        biases={"qkv": "attention_bias", "output": "attention_bias"}, normalizes_experts="norm_topk_prob",
        keys=_WINDOW | {
            "experts": "num_experts", "experts_per_token": "num_experts_per_tok",
            "expert_feed_forward": "moe_intermediate_size",
        },
        window_key="use_sliding_window",
        absent=_QWEN | {
            "num_key_value_heads": 4, "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768,
            "decoder_sparse_step": 1, "mlp_only_layers": [], "norm_topk_prob": False,
        },
    ),
    "gemma": Family(
        "Gemma 1", "GemmaForCausalLM", "gemma", norm="rms_plus_one", scales_embedding=True,
        biases={"qkv": "attention_bias", "output": "attention_bias"}, absent=_GEMMA,
        required={"use_bidirectional_attention": None},
    ),
    "gemma2": Family(
        "Gemma 2", "Gemma2ForCausalLM", "gemma2", norm="rms_plus_one", placement="both", scales_embedding=True,
        biases={"qkv": "attention_bias", "output": "attention_bias"}, keys=_GEMMA_CAPS, window_layers="alternate",
        absent=_GEMMA | {
            "sliding_window": 4096, "query_pre_attn_scalar": 256, "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 30.0, "num_key_value_heads": 4,
        },
        required={"use_bidirectional_attention": None},
    ),
    "gemma3": Family(
        "Gemma 3 (text)", "Gemma3ForCausalLM", "gemma3_text", norm="rms_plus_one", placement="both",
        head_norms="shared", scales_embedding=True, has_local_rotary=True, keys=_GEMMA_CAPS, window_layers="pattern",
        biases={"qkv": "attention_bias", "output": "attention_bias"},
        absent=_GEMMA | {
            "sliding_window": 4096, "query_pre_attn_scalar": 256, "max_position_embeddings": 131072,
            "num_key_value_heads": 4, "num_attention_heads": 8, "vocab_size": 262208, "hidden_size": 2304,
            "num_hidden_layers": 26, "intermediate_size": 9216, "rope_theta": 1e6, "rope_local_base_freq": 10000.0,
        },
        required={"use_bidirectional_attention": False},
    ),
    "phi3": Family(
        "Phi 3, Phi 3.5, Phi 4", "Phi3ForCausalLM", "phi3", biases={}, is_fused=True, keys=_WINDOW,
        absent=_COMMON | {"rms_norm_eps": 1e-5, "max_position_embeddings": 4096, "partial_rotary_factor": 1.0},
    ),
    "smollm3": Family(
        "SmolLM 3", "SmolLM3ForCausalLM", "smollm3", has_bare_layers=True, keys=_WINDOW,
        window_key="use_sliding_window", window_layers="bare",
        absent=_COMMON | {
            "tie_word_embeddings": True, "rope_theta": 2e6, "num_key_value_heads": 4, "no_rope_layer_interval": 4,
            "max_position_embeddings": 32768,
        },
    ),
    "olmo2": Family(
        "OLMo 2", "Olmo2ForCausalLM", "olmo2", placement="results", head_norms="whole",
        biases={"qkv": "attention_bias", "output": "attention_bias"},
        absent=_COMMON | {"rms_norm_eps": 1e-5, "max_position_embeddings": 2048},
    ),
    "granite": Family(
        "Granite 3", "GraniteForCausalLM", "granite",
        keys={
            "embedding_scale": "embedding_multiplier", "residual_scale": "residual_multiplier",
            "attention_scale": "attention_multiplier", "logit_scale": "logits_scaling",
        },
        absent=_COMMON | {
            "embedding_multiplier": 1.0, "residual_multiplier": 1.0, "attention_multiplier": 1.0,
            "logits_scaling": 1.0, "max_position_embeddings": 2048,
        },
    ),
    "starcoder2": Family(
        "StarCoder 2", "Starcoder2ForCausalLM", "starcoder2", norm="layer", is_gated=False,
        biases=dict.fromkeys(("qkv", "output", "feed_forward"), "use_bias"),
        keys=_WINDOW | {"epsilon": "norm_epsilon"},
        absent={
            "hidden_act": "gelu_pytorch_tanh", "norm_epsilon": 1e-5, "tie_word_embeddings": True, "use_bias": True,
            "num_key_value_heads": 2, "rope_theta": 10000.0, "max_position_embeddings": 4096,
        },
        names=(("mlp.up_proj", "mlp.c_fc"), ("mlp.down_proj", "mlp.c_proj")),
    ),
    "mixtral": Family(
        "Mixtral", "MixtralForCausalLM", "mixtral", biases={}, has_experts=True,
        keys=_WINDOW | {"experts": "num_local_experts", "experts_per_token": "num_experts_per_tok"},
        absent=_COMMON | {
            "rms_norm_eps": 1e-5, "rope_theta": 1e6, "num_key_value_heads": 8, "num_local_experts": 8,
            "num_experts_per_tok": 2, "max_position_embeddings": 131072,
        },
        names=(("mlp", "block_sparse_moe"), ("gate_proj", "w1"), ("up_proj", "w3"), ("down_proj", "w2")),
    ),
    "opt": Family(
        "OPT", "OPTForCausalLM", "opt", norm="layer", placement_key="do_layer_norm_before", is_gated=False,
        learned_from=2, biases=dict.fromkeys(("qkv", "output", "feed_forward"), "enable_bias"),
        keys={
            "feed_forward": "ffn_dim", "activation": "activation_function", "embedding_width": "word_embed_proj_dim",
            "epsilon": "", "key_value_heads": "", "head_width": "",
        },
        absent={
            "activation_function": "relu", "enable_bias": True, "do_layer_norm_before": True,
            "tie_word_embeddings": True, "max_position_embeddings": 2048,
        },
        required={"layer_norm_elementwise_affine": True, "_remove_final_layer_norm": False},
        names=(
            ("model", "model.decoder"), ("model.norm", "model.final_layer_norm"),
            ("post_attention_layernorm", "final_layer_norm"), ("input_layernorm", "self_attn_layer_norm"),
            ("mlp.up_proj", "fc1"), ("mlp.down_proj", "fc2"), ("o_proj", "out_proj"),
        ),
    ),
    "phi": Family(
        "Phi 1, Phi 1.5, Phi 2", "PhiForCausalLM", "phi", norm="layer", placement="parallel", is_gated=False,
        head_norms="shared", head_norms_key="qk_layernorm", biases=dict.fromkeys(BIASED, True), keys=_LAYER,
        absent={
            "hidden_act": "gelu_new", "layer_norm_eps": 1e-5, "tie_word_embeddings": False, "qk_layernorm": False,
            "partial_rotary_factor": 0.5, "rope_theta": 10000.0, "max_position_embeddings": 2048,
        },
        names=(
            ("model.norm", "model.final_layernorm"), ("self_attn.o_proj", "self_attn.dense"),
            ("q_norm", "q_layernorm"), ("k_norm", "k_layernorm"), ("mlp.up_proj", "mlp.fc1"),
            ("mlp.down_proj", "mlp.fc2"),
        ),
    ),
    "cohere": Family(
        "Command R", "CohereForCausalLM", "cohere", norm="layer_without_bias", placement="parallel",
        head_norms="each", head_norms_key="use_qk_norm", is_interleaved=True,
        biases={"qkv": "attention_bias", "output": "attention_bias"}, keys=_LAYER | {"logit_scale": "logit_scale"},
        absent={
            "hidden_act": "silu", "layer_norm_eps": 1e-5, "tie_word_embeddings": True, "use_qk_norm": False,
            "logit_scale": 0.0625, "rope_theta": 500000.0, "max_position_embeddings": 8192,
        },
    ),
    "deepseek_v2": Family(
        "DeepSeek V2", "DeepseekV2ForCausalLM", "deepseek_v2", is_latent=True, is_interleaved=True, has_experts=True,
        router="softmax", normalizes_experts=False, biases={"qkv": "attention_bias", "output": "attention_bias"},
        keys=_LATENT,
        absent=_DEEPSEEK | {
            "n_routed_experts": 64, "n_shared_experts": 2, "moe_intermediate_size": 1407, "first_k_dense_replace": 0,
            "routed_scaling_factor": 1.0, "max_position_embeddings": 2048, "topk_method": "greedy",
        },
        required={"scoring_func": "softmax", "norm_topk_prob": False, "moe_layer_freq": 1, "mlp_bias": False},
    ),
    "deepseek_v3": Family(
        "DeepSeek V3, R1", "DeepseekV3ForCausalLM", "deepseek_v3", is_latent=True, is_interleaved=True,
        has_experts=True, router="sigmoid", normalizes_experts="norm_topk_prob",
        biases={"qkv": "attention_bias", "output": "attention_bias"}, keys=_LATENT,
        absent=_DEEPSEEK | {
            "n_routed_experts": 256, "n_shared_experts": 1, "moe_intermediate_size": 2048, "first_k_dense_replace": 3,
            "routed_scaling_factor": 2.5, "max_position_embeddings": 4096, "num_experts_per_tok": 8, "n_group": 8,
            "topk_group": 4, "norm_topk_prob": True,
        },
        required={
            "scoring_func": "sigmoid", "topk_method": "noaux_tc", "rope_interleave": True, "moe_layer_freq": 1,
        },
    ),
    "gpt_oss": Family(
        "gpt-oss", "GptOssForCausalLM", "gpt_oss", has_sinks=True, has_experts=True, router="sinks",
        biases={"qkv": "attention_bias", "output": "attention_bias"}, window_layers="alternate",
        keys=_WINDOW | {
            "feed_forward": "intermediate_size", "experts": "num_local_experts",
            "experts_per_token": "num_experts_per_tok", "gate_limit": "swiglu_limit", "gate_gain": "swiglu_alpha",
        },
        absent=_COMMON | {
            "rms_norm_eps": 1e-5, "head_dim": 64, "sliding_window": 128, "num_key_value_heads": 8,
            "num_local_experts": 128, "num_experts_per_tok": 4, "swiglu_limit": 7.0, "swiglu_alpha": 1.702,
            "rope_theta": 150000.0, "max_position_embeddings": 131072, "attention_bias": True,
            "rope_scaling": {
                "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
                "original_max_position_embeddings": 4096,
            },
        },
    ),
}  # fmt: skip
