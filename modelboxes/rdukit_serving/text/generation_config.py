"""``generation_config.json`` next to a checkpoint: end tokens, number of tokens, and defaults of sampling."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from rdukit.errors import InvalidArgument
from rdukit_serving.text.chat_template import GENERATION_FILE, companion
from rdukit_serving.text.sampling import SamplingOptions

#: Keys that are options of sampling.
SAMPLING_KEYS: Final = (
    "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "min_tokens", "no_repeat_ngram_size",
)  # fmt: skip
#: Keys of forced tokens: the first one, and the last one if the limit of tokens ends a text.
FORCED_KEYS: Final = ("forced_bos_token_id", "forced_eos_token_id")
_TYPES: Final = {name: type(value) for name, value in asdict(SamplingOptions()).items()}


def sampling_of(known: Mapping[str, Any]) -> dict[str, float]:
    """Return the options of sampling that a ``generation_config.json`` sets; ``do_sample`` false is temperature 0.

    Raises:
        InvalidArgument: a value is outside its range. TypeError, ValueError: a value is not a number.
    """
    found = {name: _TYPES[name](known[name]) for name in SAMPLING_KEYS if known.get(name) is not None}
    if known.get("do_sample") is False:
        found["temperature"] = 0.0
    SamplingOptions(**found)
    return found


def options_of(given: Mapping[str, Any], defaults: Mapping[str, Any]) -> SamplingOptions:
    """Return the options of a text: the request's, else the defaults.

    ``do_sample: true`` in a request replaces a default temperature of 0 by 1.

    Raises:
        InvalidArgument: a value is outside its range.
    """
    found = {**defaults, **given}
    if found.pop("do_sample", False) and "temperature" not in given and not found.get("temperature", 1.0):
        found["temperature"] = 1.0
    return SamplingOptions(**found)


def sampling_defaults(checkpoint: Path | None) -> dict[str, float]:
    """Return the default options of sampling; empty without the file.

    Raises:
        InvalidArgument: the file is damaged, or a value is outside its range.
    """
    if checkpoint is None:
        return {}
    path, known = _read(checkpoint)
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
    path, known = _read(checkpoint)
    value: Any = known.get(key)
    numbers = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(number, int) and number >= 0 for number in numbers) or value == []:
        raise InvalidArgument(f"{path}: {key} is {value!r}; expected a token's number, or a list of them")
    checked: int | list[int] | None = value
    return checked


def _read(checkpoint: Path) -> tuple[Path, dict[str, Any]]:
    """Return the file next to a checkpoint, and its content; empty if it is missing."""
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
