"""``config.json`` of encoder-decoders: sizes from it, it from sizes, and the formats of their folders."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any, Final

from rdukit.errors import InvalidArgument
from rdukit_zoo.checkpoints.hub_format import HubFormat, require_value
from rdukit_zoo.language.seq2seq_sizes import SEQ2SEQ, Seq2SeqSizes
from rdukit_zoo.registry import SizeValue

#: Size → key of ``config.json``; and keys that transformers fills in where the file lacks them.
_T5_KEYS: Final[Mapping[str, str]] = {
    "width": "d_model", "layers": "num_layers", "heads": "num_heads", "head_width": "d_kv", "feed_forward": "d_ff",
    "vocabulary": "vocab_size", "buckets": "relative_attention_num_buckets",
    "farthest": "relative_attention_max_distance", "epsilon": "layer_norm_epsilon", "context_length": "n_positions",
}  # fmt: skip
_T5_ABSENT: Final[Mapping[str, Any]] = {
    "relative_attention_num_buckets": 32, "relative_attention_max_distance": 128, "layer_norm_epsilon": 1e-6,
    "n_positions": 512, "feed_forward_proj": "relu", "pad_token_id": 0, "decoder_start_token_id": 0,
}  # fmt: skip
_BART_KEYS: Final[Mapping[str, str]] = {
    "width": "d_model", "layers": "encoder_layers", "decoder_layers": "decoder_layers",
    "heads": "encoder_attention_heads", "decoder_heads": "decoder_attention_heads",
    "feed_forward": "encoder_ffn_dim", "decoder_feed_forward": "decoder_ffn_dim", "vocabulary": "vocab_size",
    "positions": "max_position_embeddings", "activation": "activation_function",
    "scales_embedding": "scale_embedding", "padding": "pad_token_id", "start": "decoder_start_token_id",
}  # fmt: skip
_BART_ABSENT: Final[Mapping[str, Any]] = {
    "activation_function": "gelu", "scale_embedding": False, "pad_token_id": 1, "decoder_start_token_id": 2,
    "max_position_embeddings": 1024,
}  # fmt: skip
_GENERATION: Final = "generation_config.json"
#: Keys of it that are obeyed in addition to those of sampling.
_GENERATED: Final = (
    "forced_bos_token_id",
    "forced_eos_token_id",
    "min_length",
    "min_new_tokens",
    "no_repeat_ngram_size",
)
_FORCED: Final = ("forced_bos_token_id", "forced_eos_token_id")
#: Keys of it that would change texts and are not computed, with the values that change nothing.
_REFUSED: Final[Mapping[str, tuple[Any, ...]]] = {
    "bad_words_ids": ([],), "suppress_tokens": ([],), "begin_suppress_tokens": ([],), "sequence_bias": ({}, []),
    "forced_decoder_ids": ([],), "encoder_no_repeat_ngram_size": (0,), "encoder_repetition_penalty": (1.0,),
}  # fmt: skip


def family_of(config: Mapping[str, Any]) -> str:
    """Return the name of a configuration's family.

    Raises:
        InvalidArgument: no family has its architecture.
    """
    named = config.get("architectures") or []
    for name, family in SEQ2SEQ.items():
        if family.architecture in named:
            return name
    raise InvalidArgument(f"config.json: no family of encoder-decoders has an architecture of {named}")


def sizes_of_config(config: Mapping[str, Any]) -> dict[str, SizeValue]:
    """Return the sizes that a Hugging Face ``config.json`` names.

    Raises:
        InvalidArgument: a value that is not computed. KeyError: a key that has no default is missing.
    """
    name = family_of(config)
    is_t5 = SEQ2SEQ[name].has_distances
    keys = _T5_KEYS if is_t5 else _BART_KEYS
    absent = {**_T5_ABSENT, "feed_forward_proj": "gated-gelu"} if name == "mt5" else _T5_ABSENT
    known = {**(absent if is_t5 else _BART_ABSENT), **{k: v for k, v in config.items() if v is not None}}
    found: dict[str, Any] = {size: known[key] for size, key in keys.items()} | {"family": name}
    require_value(known, "is_encoder_decoder", True)
    if is_t5:
        found |= _t5_sizes(known, found, SEQ2SEQ[name].may_scale_head)
    else:
        found |= {
            "head_width": int(found["width"]) // max(int(found["heads"]), 1), "epsilon": 1e-5, "scales_head": False,
            "context_length": found["positions"], "is_tied": known.get("tie_word_embeddings") is not False,
        }  # fmt: skip
    found["prompt_length"] = found["context_length"]
    defaults = asdict(Seq2SeqSizes())
    return asdict(Seq2SeqSizes(**{size: type(defaults[size])(value) for size, value in found.items()}))


def _t5_sizes(known: Mapping[str, Any], found: Mapping[str, Any], may_scale_head: bool) -> dict[str, Any]:
    *gate, activation = str(known["feed_forward_proj"]).split("-")
    if gate not in ([], ["gated"]):
        raise InvalidArgument(
            f"config.json: feed_forward_proj is {known['feed_forward_proj']!r}; expected such as 'relu' or 'gated-gelu'"
        )
    is_tied = known.get("tie_word_embeddings") is not False
    return {
        "decoder_layers": known.get("num_decoder_layers") or found["layers"], "decoder_heads": found["heads"],
        "decoder_feed_forward": found["feed_forward"], "is_gated": bool(gate), "is_tied": is_tied,
        "activation": "gelu_new" if gate and activation == "gelu" else activation,
        # Later versions write this instead of the tie, which then says nothing of the scale.
        "scales_head": may_scale_head and bool(known.get("scale_decoder_outputs", is_tied)),
        "padding": known["pad_token_id"], "start": known["decoder_start_token_id"],
    }  # fmt: skip


def config_of_sizes(sizes: Mapping[str, SizeValue]) -> dict[str, Any]:
    """Return the ``config.json`` of a model of these sizes."""
    known = Seq2SeqSizes(**sizes)  # type: ignore[arg-type]
    found: dict[str, Any] = {
        "architectures": [known.of.architecture], "model_type": known.of.model_type, "is_encoder_decoder": True,
        "pad_token_id": known.padding, "decoder_start_token_id": known.start, "tie_word_embeddings": known.is_tied,
    }  # fmt: skip
    keys = _T5_KEYS if known.of.has_distances else _BART_KEYS
    found |= {key: getattr(known, size) for size, key in keys.items()}
    if not known.of.has_distances:
        # transformers' own defaults may be beyond the vocabulary
        return found | {"bos_token_id": None, "eos_token_id": None, "forced_eos_token_id": None, "dropout": 0.0}
    activation = "gelu" if known.is_gated and known.activation == "gelu_new" else known.activation
    return found | {
        "num_decoder_layers": known.decoder_layers, "dropout_rate": 0.0,
        **({"scale_decoder_outputs": known.scales_head} if known.of.may_scale_head else {}),
        "feed_forward_proj": f"gated-{activation}" if known.is_gated else activation,
    }  # fmt: skip


def start_of_folder(path: Path) -> dict[str, SizeValue]:
    """Return the token that ``generation_config.json`` begins targets with, as ``start``; empty where it says none.

    Raises:
        InvalidArgument: the file is damaged, or names several tokens.
    """
    file = path / _GENERATION
    if not file.is_file():
        return {}
    try:
        start = dict(json.loads(file.read_text())).get("decoder_start_token_id")
    except (ValueError, TypeError) as cause:
        raise InvalidArgument(f"{file} is damaged: {cause!r}") from cause
    if start is not None and (type(start) is not int or start < 0):
        raise InvalidArgument(f"{file}: decoder_start_token_id is {start!r}; expected the number of one token")
    return {} if start is None else {"start": start}


def seq2seq_generation(known: Mapping[str, Any], vocabulary: int, *, has_file: bool) -> dict[str, Any]:
    """Return a folder's options of generation: forced tokens, minimum of tokens, and length of n-grams that may not
    repeat.

    ``known`` is its ``generation_config.json``; without one, ``has_file`` false, its ``config.json``.

    Raises:
        InvalidArgument: a value is not a number, a forced token is not in the vocabulary, or a key that would change
        texts
            is not computed.
    """
    forced = {} if has_file or known.get("model_type") in {"t5", "mt5"} else {"forced_eos_token_id": 2}
    found = {**forced, **{key: value for key, value in known.items() if value is not None}}
    refused = [f"{key} is {found[key]!r}" for key, usual in _REFUSED.items() if found.get(key) not in (None, *usual)]
    if refused:
        raise InvalidArgument(f"{_GENERATION}: {', '.join(refused)} is not supported; remove it")
    values = {key: found[key] for key in _GENERATED if key in found}
    wrong = [f"{key} is {value!r}" for key, value in values.items() if type(value) is not int or value < 0]
    if wrong:
        raise InvalidArgument(f"{_GENERATION}: {', '.join(wrong)}; expected numbers of 0 or more")
    for key in _FORCED:
        if values.get(key, 0) >= vocabulary:
            raise InvalidArgument(f"{_GENERATION}: {key} is {values[key]}; expected a token, 0 <= x < {vocabulary}")
    # ``min_length`` counts the token that the decoder begins with.
    fewest = max(values.pop("min_length", 0) - 1, values.pop("min_new_tokens", 0))
    return values | ({"min_tokens": fewest} if fewest > 0 else {})


@cache
def _format_of(name: str) -> HubFormat:
    family = SEQ2SEQ[name]
    is_t5 = family.has_distances
    return HubFormat(
        architectures=(family.architecture,), sizes_of_config=sizes_of_config, config_of_sizes=config_of_sizes,
        prefix="model.", writes_prefix=not is_t5, tied={"lm_head.weight": "model.shared.weight"},
        # Old files of T5 have distances of tokens of the target and the source, which are not used.
        ignored=(
            r"(encoder|decoder)\.embed_tokens\.weight$", r"coder\.version$",
            r"EncDecAttention\.relative_attention_bias\.weight$",
        ),
        tables=(r"\.buckets$",), spelled=family.spelled, sizes_of_folder=start_of_folder,
        # Of T5 the feed-forward part is the second of the encoder's layers, and the third of the decoder's.
        renamed=((r"^(encoder\.block\.\d+\.layer\.)1\.", r"\g<1>2."),) if is_t5 else (),
        respelled=((r"^(encoder\.block\.\d+\.layer\.)2\.", r"\g<1>1."),) if is_t5 else (),
    )  # fmt: skip


#: The format of all families; ``of_sizes`` is that of one.
HUB_FORMAT: Final = HubFormat(
    architectures=tuple(family.architecture for family in SEQ2SEQ.values()),
    sizes_of_config=sizes_of_config, config_of_sizes=config_of_sizes,
    by_sizes=lambda sizes: _format_of(str(sizes["family"])),
)  # fmt: skip
