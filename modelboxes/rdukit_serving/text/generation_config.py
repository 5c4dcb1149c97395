"""``generation_config.json`` next to a checkpoint: end tokens, number of tokens, defaults of sampling, and constraints.

``CONSTRAINTS``, ``REFUSED`` and ``WITHOUT_EFFECT`` are the fields of transformers' ``GenerationConfig``, for decoders
and encoder-decoders alike.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from rdukit.errors import InvalidArgument
from rdukit_serving.text.chat_template import GENERATION_FILE, companion
from rdukit_serving.text.sampling import SamplingOptions

#: Keys that are options of sampling.
SAMPLING_KEYS: Final = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "min_tokens")
#: Keys of forced tokens: the first one, and the last one if the limit of tokens ends a text.
FORCED_KEYS: Final = ("forced_bos_token_id", "forced_eos_token_id")


class _Kind(StrEnum):
    """Value that a constraint has, as messages name it."""

    COUNT = "a number, 0 or more"
    TOKEN = "the number of one token"
    TOKENS = "a list of tokens' numbers"
    SEQUENCES = "lists of tokens' numbers, each of 1 to 256"


#: Keys that hold for all texts → the option of sampling that obeys each, and its kind; forced tokens are no options.
CONSTRAINTS: Final[Mapping[str, tuple[str, _Kind]]] = {
    "min_new_tokens": ("min_tokens", _Kind.COUNT), "min_length": ("min_length", _Kind.COUNT),
    "no_repeat_ngram_size": ("no_repeat_ngram_size", _Kind.COUNT), "bad_words_ids": ("bad_words", _Kind.SEQUENCES),
    "suppress_tokens": ("suppressed", _Kind.TOKENS), "begin_suppress_tokens": ("suppressed_first", _Kind.TOKENS),
    **dict.fromkeys(FORCED_KEYS, ("", _Kind.TOKEN)),
}  # fmt: skip
#: Keys that would change texts and are not computed → the values that change nothing.
REFUSED: Final[Mapping[str, tuple[Any, ...]]] = {
    "sequence_bias": ({}, []), "forced_decoder_ids": ([],), "encoder_no_repeat_ngram_size": (0,),
    "encoder_repetition_penalty": (1,), "typical_p": (1,), "top_h": (), "epsilon_cutoff": (0,), "eta_cutoff": (0,),
    "guidance_scale": (1,), "exponential_decay_length_penalty": (), "watermarking_config": (), "stop_strings": ([],),
    "penalty_alpha": (0,), "dola_layers": (), "constraints": ([],), "force_words_ids": ([],), "token_healing": (False,),
}  # fmt: skip
#: Keys that a server decides in another way: texts are greedy or sampled, and requests limit them.
WITHOUT_EFFECT: Final = (
    "num_beams", "num_beam_groups", "diversity_penalty", "length_penalty", "early_stopping", "max_length",
    "max_new_tokens", "max_time", "num_return_sequences",
)  # fmt: skip
#: Tokens and sequences that a constraint may list, and tokens of a sequence.
_MOST: Final = 1 << 18
_LONGEST: Final = 256
_TYPES: Final = {name: type(value) for name, value in asdict(SamplingOptions()).items()}


def sampling_of(known: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of sampling that a ``generation_config.json`` sets; ``do_sample`` false is temperature 0.

    Raises:
        InvalidArgument: a value is outside its range, or a key is not computed. TypeError, ValueError: a value is not a
            number.
    """
    found: dict[str, Any] = {name: _TYPES[name](known[name]) for name in SAMPLING_KEYS if known.get(name) is not None}
    if known.get("do_sample") is False:
        found["temperature"] = 0.0
    constraints = constraints_of(known)
    found |= {option: _frozen(constraints[key]) for key, (option, _) in CONSTRAINTS.items() if key in constraints}
    found.pop("", None)
    SamplingOptions(**found)
    return found


def constraints_of(known: Mapping[str, Any], vocabulary: int | None = None) -> dict[str, Any]:
    """Return the constraints of a ``generation_config.json`` that change texts, under their keys.

    Raises:
        InvalidArgument: a key is not computed, a value is not of its kind, or a token is not in the ``vocabulary``.
    """
    refused = [key for key, usual in REFUSED.items() if known.get(key) not in (None, *usual)]
    if refused:
        stated = ", ".join(f"{key} is {known[key]!r:.200}" for key in refused)
        raise InvalidArgument(f"{stated}, which is not computed; expected none")
    found = {key: known[key] for key in CONSTRAINTS if known.get(key) not in (None, [])}
    for key, value in found.items():
        kind = CONSTRAINTS[key][1]
        tokens = _tokens_in(value, kind)
        if tokens is None:
            raise InvalidArgument(f"{key} is {value!r:.200}; expected {kind}")
        if vocabulary is not None and kind is not _Kind.COUNT and (wrong := max(tokens)) >= vocabulary:
            raise InvalidArgument(f"{key} is {wrong}; expected a token, 0 <= x < {vocabulary}")
    return {key: value for key, value in found.items() if CONSTRAINTS[key][1] is not _Kind.COUNT or value}


def folder_generation(
    folder: Path, config: Mapping[str, Any], vocabulary: int, ignored: Collection[str] = ()
) -> dict[str, Any]:  # fmt: skip
    """Return the options of sampling and the constraints of a Hugging Face folder, as they lie next to a checkpoint.

    Without ``generation_config.json`` the folder's ``config.json`` has the constraints.

    Args:
        vocabulary: number of tokens of the model. ignored: keys that another file next to the checkpoint has.
    Raises:
        InvalidArgument: as ``constraints_of`` and ``sampling_of``; or a file is damaged.
    """
    path, known = read_generation(folder)
    # transformers' configuration of BART has this where a file does not say it.
    is_bart = any(str(name).startswith(("Bart", "MBart")) for name in config.get("architectures") or ())
    has_file = path.is_file()
    said = known if has_file else {**({"forced_eos_token_id": 2} if is_bart else {}), **config}
    try:
        constraints = constraints_of({key: value for key, value in said.items() if key not in ignored}, vocabulary)
        sampling = sampling_of({key: known[key] for key in (*SAMPLING_KEYS, "do_sample") if key in known})
    except InvalidArgument as cause:
        raise InvalidArgument(f"{path if has_file else folder / 'config.json'}: {cause.message}") from cause
    except (ValueError, TypeError) as cause:
        raise InvalidArgument(f"{path} has a sampling option that is not a number: {cause}") from cause
    return {**sampling, **constraints}


def _tokens_in(value: object, kind: _Kind) -> list[int] | None:
    """Return the numbers in a value; None: it is not of the kind."""
    nested: object = [[value]] if kind in {_Kind.COUNT, _Kind.TOKEN} else [value] if kind is _Kind.TOKENS else value
    if not isinstance(nested, list) or not all(isinstance(each, list) and each for each in nested):
        return None
    longest = _LONGEST if kind is _Kind.SEQUENCES else _MOST
    found = [number for each in nested for number in each]
    is_valid = all(type(number) is int and number >= 0 for number in found) and len(found) <= _MOST
    return found if is_valid and max(map(len, nested)) <= longest else None


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def options_of(given: Mapping[str, Any], defaults: Mapping[str, Any]) -> SamplingOptions:
    """Return the options of a text: the request's, else the defaults.

    ``do_sample: true`` in a request replaces a default temperature of 0 by 1, its ``min_tokens`` also a default
    ``min_length``.

    Raises:
        InvalidArgument: a value is outside its range.
    """
    found = {**defaults, **given}
    if found.pop("do_sample", False) and "temperature" not in given and not found.get("temperature", 1.0):
        found["temperature"] = 1.0
    if "min_tokens" in given:
        found["min_length"] = 0
    return SamplingOptions(**found)


def sampling_defaults(checkpoint: Path | None) -> dict[str, Any]:
    """Return the default options of sampling, each hashable; empty without the file.

    Raises:
        InvalidArgument: the file is damaged, a value is outside its range, or a key is not computed.
    """
    if checkpoint is None:
        return {}
    path, known = read_generation(checkpoint)
    try:
        return sampling_of(known)
    except InvalidArgument as cause:
        raise InvalidArgument(f"{path}: {cause.message}") from cause
    except (ValueError, TypeError) as cause:
        raise InvalidArgument(f"{path} is damaged: {cause!r}") from cause


def end_tokens(checkpoint: Path) -> frozenset[int]:
    """Return the tokens that end a text, as stored next to the checkpoint; empty if there are none.

    Raises:
        InvalidArgument: the file is damaged.
    """
    value = _generation_value(checkpoint, "eos_token_id")
    return frozenset(value if isinstance(value, list) else [] if value is None else [value])


def forced_tokens(checkpoint: Path) -> tuple[int | None, int | None]:
    """Return the forced first token of a text, and the forced last one at its limit, as stored next to the checkpoint.

    Raises:
        InvalidArgument: the file is damaged, or has lists of forced tokens.
    """
    first, last = (_generation_value(checkpoint, key) for key in FORCED_KEYS)
    if isinstance(first, list) or isinstance(last, list):
        path = companion(checkpoint, GENERATION_FILE)
        raise InvalidArgument(f"{path}: {' or '.join(FORCED_KEYS)} is a list; expected the number of one token")
    return first, last


def known_tokens(checkpoint: Path) -> int | None:
    """Return the tokenizer's number of tokens, as stored next to the checkpoint; None: not stored.

    Raises:
        InvalidArgument: the file is damaged.
    """
    value = _generation_value(checkpoint, "vocab_size")
    return value[0] if isinstance(value, list) else value


def _generation_value(checkpoint: Path, key: str) -> int | list[int] | None:
    """Return a number or numbers of ``generation_config.json``; None without the file or the key."""
    path, known = read_generation(checkpoint)
    value: Any = known.get(key)
    numbers = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(number, int) and number >= 0 for number in numbers) or value == []:
        raise InvalidArgument(f"{path}: {key} is {value!r}; expected a token's number, or a list of them")
    checked: int | list[int] | None = value
    return checked


def read_generation(checkpoint: Path) -> tuple[Path, dict[str, Any]]:
    """Return the file next to a checkpoint, and its content; empty if it is missing.

    Raises:
        InvalidArgument: the file is damaged.
    """
    path = companion(checkpoint, GENERATION_FILE)
    if not path.is_file():
        return path, {}
    try:
        known = json.loads(path.read_text())
    except ValueError as cause:
        raise InvalidArgument(f"{path} is damaged: {cause!r}") from cause
    if not isinstance(known, dict):
        raise InvalidArgument(f"{path} is damaged: it holds no JSON object")
    return path, known
