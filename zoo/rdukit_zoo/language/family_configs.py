"""``config.json`` of the families: sizes from it, and it from sizes. Keys and defaults are those of ``families``."""

import math
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import cache
from typing import Any, Final

from rdukit.errors import InvalidArgument
from rdukit_zoo.checkpoints.hub_format import HubFormat, require_value
from rdukit_zoo.language.decoder import usual_prompt
from rdukit_zoo.language.families import FAMILIES, Family
from rdukit_zoo.language.family_sizes import FamilySizes, written_out
from rdukit_zoo.registry import FREE_SIZES, SizeValue

#: Key → the other spelling that folders have.
_ALIASES: Final[Mapping[str, str]] = {"num_experts": "num_local_experts"}
#: Key of which a size is a function → that function and its inverse.
_FUNCTIONS: Final[Mapping[str, tuple[Callable[[float], float], Callable[[float], float]]]] = {
    "query_pre_attn_scalar": (lambda scalar: scalar**-0.5, lambda scale: round(scale**-2)),
    "logits_scaling": (lambda divisor: 1 / divisor, lambda scale: round(1 / scale, 9)),
}
#: Size of rotary scaling → its key, where the size holds the key's value.
_ROTARY_KEYS: Final[Mapping[str, Mapping[str, str]]] = {
    "linear": {"rotary_factor": "factor"},
    "llama3": {
        "rotary_factor": "factor", "rotary_low_factor": "low_freq_factor", "rotary_high_factor": "high_freq_factor",
        "rotary_original_length": "original_max_position_embeddings",
    },
    "yarn": {
        "rotary_factor": "factor", "rotary_low_factor": "beta_slow", "rotary_high_factor": "beta_fast",
        "rotary_original_length": "original_max_position_embeddings", "rotary_attention_factor": "attention_factor",
        "rotary_truncates": "truncate", "rotary_all_scale": "mscale_all_dim",
    },
    "longrope": {
        "rotary_factor": "factor", "rotary_original_length": "original_max_position_embeddings",
        "rotary_attention_factor": "attention_factor",
    },
}  # fmt: skip
_TYPES: Final[Mapping[str, type]] = {each.name: type(each.default) for each in fields(FamilySizes)}
_SLIDING, _FULL = "sliding_attention", "full_attention"


def family_of(config: Mapping[str, Any]) -> str:
    """Return the name of a configuration's family.

    Raises:
        InvalidArgument: no family has its architecture.
    """
    named = config.get("architectures") or []
    for name, family in FAMILIES.items():
        if family.architecture in named:
            return name
    raise InvalidArgument(f"config.json: no family has an architecture of {named}")


def sizes_of_config(config: Mapping[str, Any]) -> dict[str, SizeValue]:
    """Return the sizes that a Hugging Face ``config.json`` names.

    Raises:
        InvalidArgument: a value that is not computed. KeyError: a key that has no default is missing.
    """
    name = family_of(config)
    family = FAMILIES[name]
    for key, wanted in family.required.items():
        if config.get(key, wanted) or wanted:
            require_value(config, key, wanted)
    known = {**family.absent, **{key: value for key, value in config.items() if value is not None}}
    for key, other in _ALIASES.items():
        if key not in config and other in config:
            known[key] = config[other]
    found: dict[str, SizeValue] = {"family": name}
    for size in family.sizes_with_keys:
        key = family.key_of(size)
        if key in known and not (config.get(key, 0) is None and key in config):
            value = _FUNCTIONS[key][0](known[key]) if key in _FUNCTIONS else known[key]
            found[size] = _TYPES[size](value)
    for size in ("width", "layers", "heads", "feed_forward", "vocabulary", "context_length"):
        if size not in found:
            raise KeyError(family.key_of(size))
    found.setdefault("key_value_heads", found["heads"])
    found["prompt_length"] = usual_prompt(int(found["context_length"]))
    layers = int(found["layers"])
    found["biases"] = ",".join(place for place, by in family.biases.items() if _is_true(known, by))
    if family.head_norms_key:
        found["head_norms"] = family.head_norms if known[family.head_norms_key] else "none"
    if family.placement_key:
        found["placement"] = family.placement if known[family.placement_key] else "sums"
    if family.learned_from >= 0:
        found["positions"] = found["context_length"]
    if family.has_experts:
        found["normalizes_experts"] = _is_true(known, family.normalizes_experts)
        found["expert_layers"] = _marks(_has_experts(known, layer) for layer in range(layers))
    if known.get("topk_method") == "greedy":
        found |= {"expert_groups": 1, "expert_groups_chosen": 1}
    elif family.router == "softmax":
        require_value(known, "topk_method", "group_limited_greedy")
    bare = _bare_layers(known, layers) if family.has_bare_layers else set()
    found["rotary_layers"] = _marks(layer not in bare for layer in range(layers))
    if "window" in found and (not family.window_key or known.get(family.window_key)):
        marks = _marks(_has_window(family, known, layer, bare) for layer in range(layers))
        found["window_layers"] = marks
        if "1" not in marks:
            found["window"] = 0
    else:
        found["window"] = 0
        _refuse_layers(config.get("layer_types"), (_FULL,))
    if family.learned_from < 0:
        found |= _rotary_sizes(family, known, found)
    return dict(written_out(found))


def config_of_sizes(sizes: Mapping[str, SizeValue]) -> dict[str, Any]:
    """Return the ``config.json`` of a model of these sizes.

    Raises:
        InvalidArgument: one has a value that the family's configurations cannot say.
    """
    found, wanted = _config_of_sizes(sizes), written_out(sizes)
    said = sizes_of_config(found)
    unsaid = sorted(name for name, value in wanted.items() if name not in FREE_SIZES and said[name] != value)
    if unsaid:
        values = ", ".join(f"{name} {wanted[name]!r}" for name in unsaid)
        raise InvalidArgument(f"config.json of family {wanted['family']!r} cannot say {values}; expected the family's")
    return found


def _config_of_sizes(sizes: Mapping[str, SizeValue]) -> dict[str, Any]:
    known = FamilySizes.from_values(sizes).filled()
    family = known.of
    found: dict[str, Any] = {
        "architectures": [family.architecture], "model_type": family.model_type,
        "pad_token_id": None,  # transformers' own default may be beyond the vocabulary
    }  # fmt: skip
    for size in family.sizes_with_keys:
        key = family.key_of(size)
        value = getattr(known, size)
        if size in {"attention_cap", "logit_cap", "window", "query_latent"} and not value:
            found[key] = None
        else:
            found[key] = _FUNCTIONS[key][1](value) if key in _FUNCTIONS else value
    for place, by in family.biases.items():
        if isinstance(by, str):
            found[by] = place in known.biased
    if family.head_norms_key:
        found[family.head_norms_key] = known.head_norms != "none"
    if family.placement_key:
        found[family.placement_key] = known.placement != "sums"
    if family.learned_from >= 0:
        found["max_position_embeddings"] = known.learned_positions
    every = range(known.layers)
    if family.has_experts:
        dense = [number for number in every if not known.has(known.expert_layers, number)]
        found |= {"first_k_dense_replace": len(dense)} if family.is_latent else {"mlp_only_layers": dense}
        if family.router == "softmax":
            found["topk_method"] = "greedy" if known.expert_groups == 1 else "group_limited_greedy"
        if isinstance(family.normalizes_experts, str):
            found[family.normalizes_experts] = known.normalizes_experts
    if family.has_bare_layers:
        found["no_rope_layers"] = [int(known.has(known.rotary_layers, number)) for number in every]
    if family.window_key:
        found[family.window_key] = bool(known.window)
    if family.window_layers != "all":
        has = [bool(known.window) and known.has(known.window_layers, number) for number in every]
        found["layer_types"] = [_SLIDING if it else _FULL for it in has]
    return found | (_rotary_config(family, known) if known.is_rotary else {})


def _is_true(known: Mapping[str, Any], by: str | bool) -> bool:
    return bool(known.get(by, False)) if isinstance(by, str) else by


def _marks(marks: Any) -> str:
    return "".join("1" if is_marked else "0" for is_marked in marks)


def _has_experts(known: Mapping[str, Any], layer: int) -> bool:
    if layer < (known.get("first_k_dense_replace") or 0) or layer in (known.get("mlp_only_layers") or []):
        return False
    return (layer + 1) % (known.get("decoder_sparse_step") or 1) == 0


def _bare_layers(known: Mapping[str, Any], layers: int) -> set[int]:
    """Return the layers without positions."""
    listed = known.get("no_rope_layers")
    if listed is None:
        interval = int(known["no_rope_layer_interval"])
        return {layer for layer in range(layers) if (layer + 1) % interval == 0}
    return {layer for layer in range(layers) if not listed[layer]}


def _has_window(family: Family, known: Mapping[str, Any], layer: int, bare: set[int]) -> bool:
    if family.window_layers == "all":
        return True
    listed = known.get("layer_types")
    if listed:
        _refuse_layers(listed, (_SLIDING, _FULL))
        return bool(listed[layer] == _SLIDING)
    if family.window_layers == "late":
        return layer >= int(known["max_window_layers"])
    if family.window_layers == "bare":
        return layer in bare
    pattern = known.get("sliding_window_pattern") or known.get("_sliding_window_pattern") or 6
    return (layer + 1) % (2 if family.window_layers == "alternate" else int(pattern)) != 0


def _refuse_layers(listed: list[str] | None, legal: tuple[str, ...]) -> None:
    others = sorted(set(listed or ()) - set(legal))
    if others:
        raise InvalidArgument(f"config.json: layer_types has {', '.join(others)}; expected {' or '.join(legal)} only")


def _rotary_sizes(family: Family, known: Mapping[str, Any], found: Mapping[str, SizeValue]) -> dict[str, SizeValue]:
    """Return the sizes of rotary positions, from ``rope_parameters``, or from the older ``rope_scaling`` and its
    neighbouring keys."""
    rotary = known.get("rope_parameters") or known.get("rope_scaling") or {}
    sizes: dict[str, SizeValue] = {}
    if family.has_local_rotary:
        nested = rotary if _FULL in rotary else {}
        local, rotary = nested.get(_SLIDING) or {}, nested.get(_FULL) or ({} if nested else rotary)
        if (local.get("rope_type") or "default") != "default":
            raise InvalidArgument(
                f"config.json: the windows' rope_type is {local['rope_type']!r}; this model has 'default' only"
            )
        sizes["local_rotary_base"] = float(local.get("rope_theta") or known["rope_local_base_freq"])
    kind = str(rotary.get("rope_type") or rotary.get("type") or "default")
    if family.model_type == "phi3" and kind in {"su", "yarn"}:
        kind = "longrope"  # as these folders were first written
    context = int(found["context_length"])
    original = (
        rotary.get("original_max_position_embeddings") or known.get("original_max_position_embeddings") or context
    )
    rotary = {**rotary, "original_max_position_embeddings": context if kind == "dynamic" else original}
    if kind in {"yarn", "longrope"} and rotary.get("factor") is None:
        rotary["factor"] = context / original
    if kind == "yarn":
        rotary = {"beta_fast": 32.0, **{key: value for key, value in rotary.items() if value is not None}}
        ours, all_ours = rotary.get("mscale"), rotary.get("mscale_all_dim")
        if "attention_factor" not in rotary and ours and all_ours:
            rotary["attention_factor"] = _magnitude(rotary["factor"], ours) / _magnitude(rotary["factor"], all_ours)
    if "partial_rotary_factor" not in family.absent:
        require_value({**known, **rotary}, "partial_rotary_factor", 1.0)
    else:
        sizes["rotary_share"] = float(rotary.get("partial_rotary_factor") or known["partial_rotary_factor"])
    sizes |= {"rotary_base": float(rotary.get("rope_theta") or known["rope_theta"]), "rotary_kind": kind}
    for size, key in {
        **_ROTARY_KEYS.get(kind, {}),
        "rotary_original_length": "original_max_position_embeddings",
    }.items():
        if rotary.get(key) is not None:
            sizes[size] = _TYPES[size](rotary[key])
    if kind == "longrope":
        for size, key in (("rotary_short", "short_factor"), ("rotary_long", "long_factor")):
            sizes[size] = ",".join(str(float(number)) for number in rotary[key])
    return sizes


def _magnitude(factor: float, scale: float) -> float:
    """Return YaRN's factor of cosines and sines."""
    return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1


def _rotary_config(family: Family, known: FamilySizes) -> dict[str, Any]:
    rotary: dict[str, Any] = {"rope_theta": known.rotary_base, "rope_type": known.rotary_kind}
    for size, key in _ROTARY_KEYS.get(known.rotary_kind, {}).items():
        if size not in {"rotary_attention_factor", "rotary_all_scale"} or getattr(known, size):
            rotary[key] = getattr(known, size)
    if known.rotary_kind == "dynamic":
        rotary["factor"] = 1.0
    if known.rotary_kind == "longrope":
        rotary["short_factor"] = [float(number) for number in known.rotary_short.split(",")]
        rotary["long_factor"] = [float(number) for number in known.rotary_long.split(",")]
    found: dict[str, Any] = {"rope_theta": known.rotary_base}
    if "partial_rotary_factor" in family.absent:
        rotary["partial_rotary_factor"] = found["partial_rotary_factor"] = known.rotary_share
    if known.rotary_kind == "longrope" and family.model_type == "phi3":
        found["original_max_position_embeddings"] = known.rotary_original_length
    if family.has_local_rotary:
        local = known.local_rotary_base or known.rotary_base
        nested = {_FULL: rotary, _SLIDING: {"rope_theta": local, "rope_type": "default"}}
        return found | {"rope_parameters": nested, "rope_local_base_freq": local}
    return found | {"rope_parameters": rotary}


@cache
def _format_of(name: str, layers: int = 0) -> HubFormat:
    """Return the format of a family, of which layers beyond ``layers`` are ignored; 0: there are none."""
    beyond = (rf"^model\.layers\.{layers}\.",) if layers else ()
    return HubFormat(
        tables=(r"\.(local_)?rotary\.",), exact=(r"\.e_score_correction_bias$",),
        architectures=(FAMILIES[name].architecture,),
        sizes_of_config=sizes_of_config, config_of_sizes=config_of_sizes, prefix="model.",
        tied={"lm_head.weight": "model.embed_tokens.weight"},
        ignored=(r"rotary_emb\.inv_freq$", r"^model\.version$", *beyond),
        renamed=((r"^decoder\.", "model.decoder."),) if name == "opt" else (), spelled=FAMILIES[name].names,
    )  # fmt: skip


#: The format of all families; ``of_sizes`` is that of one.
HUB_FORMAT: Final = HubFormat(
    architectures=tuple(family.architecture for family in FAMILIES.values()),
    sizes_of_config=sizes_of_config, config_of_sizes=config_of_sizes,
    # DeepSeek V3's files hold one more layer, which predicts the token after the next; transformers ignores it, too.
    by_sizes=lambda sizes: _format_of(
        str(sizes["family"]), int(sizes["layers"]) if sizes["family"] == "deepseek_v3" else 0
    ),
)  # fmt: skip
