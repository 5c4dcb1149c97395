"""``config.json`` of the encoders: sizes from it, it from sizes, and the formats of their folders."""

from collections.abc import Mapping
from dataclasses import asdict
from functools import cache, partial
from typing import Any, Final

from rdukit.errors import InvalidArgument
from rdukit_zoo.checkpoints.hub_format import HubFormat, require_value
from rdukit_zoo.checkpoints.sentence_modules import files_of_pooling, pooling_of_folder
from rdukit_zoo.language.encoder_sizes import ENCODERS, BertSizes
from rdukit_zoo.registry import SizeValue

#: Ends of the architectures' names: a head for masked words, one for classes, none.
MASKED, CLASSIFIER, BODY = "ForMaskedLM", "ForSequenceClassification", "Model"
#: Longest context that is computed unless another is asked for: all of it is, for each text.
_CONTEXT: Final = 128
_LOCAL, _FULL = "sliding_attention", "full_attention"


def family_of(config: Mapping[str, Any]) -> str:
    """Return the name of a configuration's family.

    Raises:
        InvalidArgument: no family has its ``model_type`` or architecture.
    """
    named = [str(name) for name in config.get("architectures") or ()]
    for name, family in ENCODERS.items():
        if any(each in {family.stem + end for end in (MASKED, CLASSIFIER, BODY)} for each in named):
            return name
    raise InvalidArgument(f"config.json: no family of encoders has an architecture of {named}")


def sizes_of_config(config: Mapping[str, Any]) -> dict[str, SizeValue]:
    """Return the sizes that a Hugging Face ``config.json`` names.

    Raises:
        InvalidArgument: a value that this architecture does not have. KeyError: a key is missing.
    """
    name = family_of(config)
    found: dict[str, Any] = {
        "family": name, "width": int(config["hidden_size"]), "layers": int(config["num_hidden_layers"]),
        "heads": int(config["num_attention_heads"]), "feed_forward": int(config["intermediate_size"]),
        "vocabulary": int(config["vocab_size"]),
        "num_classes": len(config.get("id2label") or ()) or int(config.get("num_labels", 2)),
    }  # fmt: skip
    positions = int(config["max_position_embeddings"])
    if ENCODERS[name].is_modern:
        found |= _modern_sizes(config, found["layers"])
    else:
        require_value(config, "hidden_act", "gelu")
        require_value(config, "position_embedding_type", "absolute")
        require_value(config, "is_decoder", False)
        found |= {
            "epsilon": float(config.get("layer_norm_eps", 1e-12)),
            "dropout": float(config.get("hidden_dropout_prob", 0.1)),
            "token_types": int(config.get("type_vocab_size", 2)) if ENCODERS[name].has_types else 1,
        }
    if ENCODERS[name].counts_padding:
        padding = config.get("pad_token_id", 1)
        found["padding"] = 1 if name == "mpnet" or padding is None else int(padding)
        positions -= found["padding"] + 1
    if ENCODERS[name].has_distances:
        require_value(config, "relative_attention_num_buckets", 32)
    return asdict(BertSizes(**found, context_length=min(positions, _CONTEXT), positions=positions))


def _modern_sizes(config: Mapping[str, Any], layers: int) -> dict[str, Any]:
    require_value(config, "hidden_activation", "gelu")
    require_value(config, "classifier_activation", "gelu")
    for key in ("norm_bias", "attention_bias", "mlp_bias"):
        require_value(config, key, False)
    every = int(config.get("global_attn_every_n_layers") or 3)
    listed = config.get("layer_types") or [_LOCAL if number % every else _FULL for number in range(layers)]
    others = sorted(set(listed) - {_LOCAL, _FULL})
    if others or len(listed) != layers:
        raise InvalidArgument(
            f"config.json: layer_types has {', '.join(others) or len(listed)}; expected {layers} of {_LOCAL}, {_FULL}"
        )
    rotary = config.get("rope_parameters") or {}
    for kind, parameters in rotary.items():
        if kind not in {_LOCAL, _FULL} or not isinstance(parameters, dict | None):
            raise InvalidArgument(
                f"config.json: rope_parameters has {kind!r}; expected {_LOCAL!r} and {_FULL!r} with values of each"
            )
        require_value(parameters or {}, "rope_type", "default")
    if config.get("rope_scaling"):
        raise InvalidArgument("config.json: rope_scaling is set; this model has positions that are not stretched")
    window = int(config.get("local_attention", 128))
    if window < 2 and _LOCAL in listed:
        raise InvalidArgument(f"config.json: local_attention is {window}; expected 2 or more tokens")
    full, local = rotary.get(_FULL) or {}, rotary.get(_LOCAL) or {}
    pooling = config.get("classifier_pooling") or "cls"
    if pooling not in {"cls", "mean"}:
        raise InvalidArgument(f"config.json: classifier_pooling is {pooling!r}; expected 'cls' or 'mean'")
    return {
        "epsilon": float(config.get("norm_eps", 1e-5)), "token_types": 1,
        "dropout": float(config.get("classifier_dropout") or 0.0),
        "window": window // 2,
        "window_layers": "".join(str(int(kind == _LOCAL)) for kind in listed),
        "rotary_base": float(full.get("rope_theta") or config.get("global_rope_theta") or 160000.0),
        "local_rotary_base": float(local.get("rope_theta") or config.get("local_rope_theta") or 10000.0),
        "classifier_pooling": "first" if pooling == "cls" else "mean",
        "has_classifier_bias": bool(config.get("classifier_bias", False)),
    }  # fmt: skip


def config_of_sizes(head: str, sizes: Mapping[str, SizeValue]) -> dict[str, Any]:
    """Return the ``config.json`` of a model of these sizes with a head: ``MASKED``, ``CLASSIFIER`` or ``BODY``."""
    known = BertSizes(**sizes)  # type: ignore[arg-type]
    found: dict[str, Any] = {
        "architectures": [known.of.stem + head], "model_type": known.of.model_type, "hidden_size": known.width,
        "num_hidden_layers": known.layers, "num_attention_heads": known.heads,
        "intermediate_size": known.feed_forward, "vocab_size": known.vocabulary,
        "max_position_embeddings": known.position_rows,
    }  # fmt: skip
    if head == CLASSIFIER:
        found["id2label"] = {str(k): f"LABEL_{k}" for k in range(known.num_classes)}
    if known.of.is_modern:
        kinds = [_LOCAL if known.has_window(number) else _FULL for number in range(known.layers)]
        bases = {_FULL: known.rotary_base, _LOCAL: known.local_rotary_base}
        return found | {
            "norm_eps": known.epsilon, "hidden_activation": "gelu", "local_attention": 2 * known.window,
            "layer_types": kinds, "classifier_dropout": known.dropout,
            "rope_parameters": {kind: {"rope_type": "default", "rope_theta": base} for kind, base in bases.items()},
            "classifier_pooling": "cls" if known.classifier_pooling == "first" else "mean",
            "classifier_bias": known.has_classifier_bias,
            # transformers' own defaults may be beyond the vocabulary
            **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id")),
        }  # fmt: skip
    if known.of.has_types:
        found["type_vocab_size"] = known.token_types
    if known.of.counts_padding:
        found["pad_token_id"] = known.padding
    return found | {
        "layer_norm_eps": known.epsilon, "hidden_act": "gelu", "hidden_dropout_prob": known.dropout,
        "attention_probs_dropout_prob": 0.0,
    }  # fmt: skip


@cache
def format_of(head: str, family: str = "") -> HubFormat:
    """Return the format of folders with a head: of one family, or of all that have this head."""
    names = (family,) if family else tuple(ENCODERS) if head != MASKED else ("bert",)
    heads = {
        MASKED: (r"^bert\.pooler\.", r"^cls\.seq_relationship\."),  # what a checkpoint of pre-training has beside
        # Of other families the classifier reads the states themselves: files may have a pooler that is not used.
        CLASSIFIER: () if family == "bert" else (r"^bert\.pooler\.",),
        BODY: (r"^bert\.pooler\.", r"^cls\.", r"^pooler\.", r"^lm_head\.", r"^head\.", r"^decoder\.", r"^classifier\."),
    }
    return HubFormat(
        architectures=tuple(ENCODERS[name].stem + head for name in names),
        sizes_of_config=sizes_of_config, config_of_sizes=partial(config_of_sizes, head), prefix="bert.",
        writes_prefix=head != BODY,
        tied={
            "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
            "cls.predictions.decoder.bias": "cls.predictions.bias",
        },
        ignored=(r"embeddings\.position_ids$", *heads[head]),
        tables=(r"\.buckets$", r"\.(local_)?rotary\."),
        renamed=((r"LayerNorm\.gamma$", "LayerNorm.weight"), (r"LayerNorm\.beta$", "LayerNorm.bias")),
        spelled=ENCODERS[family].spelled if family else (),
        by_sizes=None if family else lambda sizes: format_of(head, str(sizes.get("family", "bert"))),
        sizes_of_folder=pooling_of_folder if head == BODY else None,
        files_of_sizes=files_of_pooling if head == BODY else None,
    )  # fmt: skip
