"""Tiny configurations of Hugging Face's architectures, derived from each configuration class by attribute names."""

import dataclasses
import inspect
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final


class Part(dict[str, Any]):
    """Special attributes of a part of a configuration, which is tiny by the rules otherwise."""


#: Attribute → tiny value, where the class has the attribute and its default is of that kind.
_SIZES: Final[Mapping[str, int]] = {
    **dict.fromkeys(
        "hidden_size d_model n_embd embed_dim dim emb_dim model_dim encoder_hidden_dim text_hidden_size hidden_dim "
        "decoder_hidden_size embedding_dim out_hidden_size qk_channels cross_attention_hidden_size "
        "encoder_hidden_size projector_hidden_size lm_hidden_size".split(), 32),
    **dict.fromkeys("embedding_size projection_dim reassemble_hidden_size fusion_hidden_size emb_size".split(), 32),
    **dict.fromkeys(
        "intermediate_size d_ff d_inner ffn_dim encoder_ffn_dim decoder_ffn_dim n_inner mlp_dim ffn_hidden_size "
        "decoder_intermediate_size intermediate_dim".split(), 64),
    **dict.fromkeys("moe_intermediate_size shared_expert_intermediate_size expert_ffn_hidden_size".split(), 32),
    **dict.fromkeys(
        "num_hidden_layers n_layer n_layers num_layers encoder_layers decoder_layers num_encoder_layers "
        "num_decoder_layers depth num_encoder_blocks_ decoder_num_hidden_layers encoder_num_hidden_layers "
        "num_hidden_layers_ text_num_hidden_layers num_adapter_layers_".split(), 2),
    **dict.fromkeys(
        "num_attention_heads n_head n_heads num_heads encoder_attention_heads decoder_attention_heads "
        "attention_heads decoder_num_attention_heads encoder_num_attention_heads num_query_heads".split(), 4),
    **dict.fromkeys("num_key_value_heads num_kv_heads multi_query_group_num".split(), 2),
    **dict.fromkeys("head_dim d_kv attention_head_dim d_head attention_head_size".split(), 8),
    **dict.fromkeys("qk_nope_head_dim qk_rope_head_dim v_head_dim".split(), 8),
    **dict.fromkeys("kv_lora_rank q_lora_rank".split(), 16),
    **dict.fromkeys("index_head_dim".split(), 16),
    "index_n_heads": 2, "index_topk": 8,
    "vocab_size": 99, "max_position_embeddings": 64, "n_positions": 64, "max_seq_len": 64, "n_ctx": 64,
    "image_size": 32, "num_codebooks": 2, "num_mel_bins_": 16, "max_source_positions_": 32,
    **dict.fromkeys("num_experts num_local_experts n_routed_experts moe_num_experts num_routed_experts".split(), 4),
    **dict.fromkeys(
        "num_experts_per_tok num_experts_per_token moe_topk moe_k num_selected_experts top_k_experts".split(), 2),
    **dict.fromkeys("n_shared_experts num_shared_experts moe_num_shared_experts".split(), 1),
    "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1, "num_dense_layers": 1,
    **dict.fromkeys("mamba_d_state state_size ssm_state_size".split(), 8),
    **dict.fromkeys("mamba_chunk_size chunk_size ssm_chunk_size".split(), 8),
    **dict.fromkeys("mamba_n_heads mamba_num_heads".split(), 8),
    "mamba_d_head": 8, "mamba_head_dim": 8, "time_step_rank": 4, "mamba_dt_rank": 4,
    **dict.fromkeys("linear_key_head_dim linear_value_head_dim".split(), 8),
    "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "num_queries": 8, "type_vocab_size_": 2, "num_nextn_predict_layers": 0, "num_frames": 4,
    "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 2, "num_kv_shared_layers": 0,
    "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 99, "sliding_window": 8, "hc_mult": 2,
    "conv_depthwise_kernel_size": 7, "rotary_dim": 4, "num_feature_levels_": 3, "mm_tokens_per_image": 4,
    "num_mtp_layers": 0,
}  # fmt: skip
#: Rates that are 0, so that a step has one right answer.
_RATES: Final = re.compile(
    r"(drop(out)?(_|$)|_p?drop$|pdrop|dropout|drop_path|drop_rate|layerdrop|mask_(time|feature)_prob|jitter|"
    r"noise_ratio|drop_connect)"
)
_IDS: Final = re.compile(r"(_token_id|_token_index|_id|_index)$")
_LISTS_OF_WIDTHS: Final = re.compile(r"^(hidden_sizes|embed_dims?|neck_hidden_sizes|encoder_hidden_sizes|dims)$")
_LISTS_OF_DEPTHS: Final = re.compile(r"^(depths|num_block_repeats|num_blocks|layers)$")
_LAYER_TYPES: Final = re.compile(
    r"^(layer_types|layers_block_type|mlp_layer_types|block_types|hybrid_override_pattern)$"
)
#: Levels of shrinking: what a level leaves alone is at its default.
LEVELS: Final = ("all", "depth")
_DEPTH_ONLY: Final = frozenset(
    "num_hidden_layers n_layer n_layers num_layers encoder_layers decoder_layers num_encoder_layers num_decoder_layers "
    "depth vocab_size decoder_num_hidden_layers encoder_num_hidden_layers".split()
)


def tiny_overrides(config: Any, level: str = "all") -> dict[str, Any]:
    """Return the arguments with which ``type(config)`` makes a tiny model; ``config`` has its defaults."""
    found: dict[str, Any] = {}
    for name, value in _attributes(config):
        if level != "nothing" and (tiny := _tiny_value(name, value, level)) is not None:
            found[name] = tiny
        elif _RATES.search(name) and isinstance(value, float) and 0 < value < 1:
            found[name] = 0.0
    if "kv_lora_rank" in found and "num_key_value_heads" in found:  # latent attention has no groups of heads
        found["num_key_value_heads"] = found.get("num_attention_heads", found["num_key_value_heads"])
    vocabulary = found.get("vocab_size") or getattr(config, "vocab_size", None)
    if level == "all" or "vocab_size" in found:
        for name, value in _attributes(config):
            if (
                _IDS.search(name)
                and isinstance(value, int)
                and not isinstance(value, bool)
                and vocabulary == 99
                and value >= 99
            ):
                found[name] = _small_id(name)
    return found


def _small_id(name: str) -> int:
    """Return an id below the tiny vocabulary; ids of special tokens differ, and ids of inputs lie between them."""
    plain = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    return plain.get(name, 80 + sum(map(ord, name)) % 19)


def _tiny_value(name: str, value: Any, level: str) -> Any:
    if isinstance(value, bool) or value is None:
        return None
    if level == "depth":
        return _SIZES[name] if name in _DEPTH_ONLY and isinstance(value, int) and value > _SIZES[name] else None
    if name in _SIZES and isinstance(value, int):
        return min(_SIZES[name], value) if name not in {"num_key_value_heads"} else min(2, value)
    if isinstance(value, list | tuple) and value and all(type(v) is int for v in value):
        if _LISTS_OF_DEPTHS.match(name):
            return [1] * len(value)
        if _LISTS_OF_WIDTHS.match(name):
            least = min(value)
            return [v * 16 // least for v in value] if least > 16 else None
        if name == "image_size":
            return [32] * len(value)
    if name in {"patch_size", "mask_patch_size"} and isinstance(value, int) and value > 8:
        return 8
    if name == "encoder_stride" and isinstance(value, int) and value > 8:
        return 8
    if name == "conv_dim" and isinstance(value, list | tuple):
        return [16] * len(value)
    if name == "num_labels" and isinstance(value, int):
        return min(value, 5)
    return None


def _attributes(config: Any) -> Iterator[tuple[str, Any]]:
    named = {f.name for f in dataclasses.fields(config)} if dataclasses.is_dataclass(config) else set()
    for name, value in vars(config).items():
        if not name.startswith("_") and (name in named or not named):
            yield name, value


def tiny_config(kind: type, level: str = "all", special: Mapping[str, Any] | None = None) -> Any:
    """Return a tiny configuration of class ``kind``, with tiny parts.

    Args:
        level: one of ``LEVELS``, how much is shrunk. special: attributes of this architecture that the rules miss.
    """
    config = kind()
    arguments = tiny_overrides(config, level)
    special = dict(special or {})
    for name, part in vars(config).items():
        if hasattr(part, "to_dict") and hasattr(part, "model_type") and name not in arguments:
            own = special.pop(name) if isinstance(special.get(name), Part) else None
            arguments[name] = tiny_config(type(part), level, own)
    if level == "all" and (sections := _rotary_sections(kind, config, arguments)) is not None:
        arguments["rope_parameters"] = sections
    _shorten_lists(config, arguments)
    arguments.update(special)
    made = kind(**arguments)
    if hasattr(made, "text_config") and getattr(made, "use_cache", None) is not None:
        made.use_cache = False
    return made


def _rotary_sections(kind: type, config: Any, arguments: dict[str, Any]) -> dict[str, Any] | None:
    """Return rotary parameters with a section for each of three axes, whose sum is half of the rotated width."""
    code = Path(inspect.getfile(kind))
    sources = (file.read_text() for file in code.parent.glob("modeling_*.py"))
    if ("head_dim" not in arguments and "hidden_size" not in arguments) or not hasattr(config, "rope_parameters"):
        return None
    if not any("mrope_section" in source for source in sources):
        return None
    former = config.rope_parameters if isinstance(config.rope_parameters, dict) else {}
    half = max(int(8 * former.get("partial_rotary_factor", 1.0)) // 2, 1)
    sections = [half - 2 * (half // 3), half // 3, half // 3]
    return {"rope_theta": 10000.0, "rope_type": "default", **former, "mrope_section": sections}


def _shorten_lists(config: Any, arguments: dict[str, Any]) -> None:
    """Lists with an item per layer get as many items as there are layers now, of as many kinds as fit."""
    depth = next(
        (arguments[n] for n in ("num_hidden_layers", "n_layer", "n_layers", "num_layers") if n in arguments), None
    )
    former = next(
        (getattr(config, n) for n in ("num_hidden_layers", "n_layer", "n_layers", "num_layers") if n in arguments), None
    )
    if depth is None or not isinstance(former, int):
        return
    for name, value in _attributes(config):
        if name in arguments or not isinstance(value, list | tuple | str) or len(value) != former or former <= depth:
            continue
        if isinstance(value, str) and not _LAYER_TYPES.match(name):
            continue
        kinds = list(dict.fromkeys(value)) if all(isinstance(v, str | int | bool) for v in value) else []
        chosen = (kinds + list(value))[:depth] if len(kinds) > 1 else list(value)[:depth]
        if 2 < len(kinds) <= 4:
            chosen = kinds
            arguments.update({n: len(kinds) for n in ("num_hidden_layers", "n_layer", "num_layers") if n in arguments})
        arguments[name] = "".join(chosen) if isinstance(value, str) else type(value)(chosen)
