"""Facts of a Hugging Face folder of Whisper: how audio becomes spectrograms, and what its tokens mean.

``preprocessor_config.json`` and ``generation_config.json`` say it; what an old folder leaves out of the second is
looked up in the tokenizer.
"""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tokenizers import Tokenizer

from rdukit.errors import InvalidArgument, NotFound
from rdukit_serving.speech.description import AudioForm, SpeechDescription, SpeechTokens, TranscriptLimits
from rdukit_serving.text.chat_template import GENERATION_FILE, TOKENIZER_FILE
from rdukit_zoo.checkpoints.folder import HubFolder, read_optional_json

PROCESSOR: Final = "preprocessor_config.json"
#: Keys of the processor → value that is computed.
_FIXED: Final = (("padding_value", 0.0), ("dither", 0.0), ("do_normalize", False))
#: Keys of ``generation_config.json`` → the limits of transcripts that they set.
_LIMITS: Final = (
    ("logprob_threshold", "logprob"), ("compression_ratio_threshold", "compression"),
    ("no_speech_threshold", "no_speech"),
)  # fmt: skip
#: The key that asks for what is not done.
_NOT_DONE: Final = "condition_on_prev_tokens"
#: Keys of it that a description has, or that have no effect here, and that mean something else for other models.
SPEECH_KEYS: Final = ("suppress_tokens", "begin_suppress_tokens", "forced_decoder_ids")
_LANGUAGE: Final = re.compile(r"<\|([a-z]{2,3})\|>")


def describe_speech(hub: HubFolder) -> SpeechDescription:
    """Return the facts of a folder.

    Raises:
        NotFound: it has no tokenizer. InvalidArgument: a file is damaged, states values that are not computed, or
            does not say which tokens begin and end a transcript.
    """
    median = hub.config.get("median_filter_width") or 7
    if type(median) is not int or not 1 <= median <= 99 or median % 2 == 0:
        raise InvalidArgument(f"{hub.path}: median_filter_width is {median!r}; expected an odd number, 1 to 99")
    return SpeechDescription(_audio_form(hub), _speech_tokens(hub), _limits(hub), median)


def _limits(hub: HubFolder) -> TranscriptLimits:
    path = hub.path / GENERATION_FILE
    known = read_optional_json(path)
    if known.get(_NOT_DONE) not in (None, False):
        raise InvalidArgument(
            f"{path}: {_NOT_DONE} is {known[_NOT_DONE]!r}; expected false, as no window sees the text of another"
        )
    found = {name: known[key] for key, name in _LIMITS if known.get(key) is not None}
    wrong = [key for key, name in _LIMITS if name in found and type(found[name]) not in (int, float)]
    if wrong or not all(map(math.isfinite, found.values())):
        raise InvalidArgument(f"{path}: {', '.join(wrong or (key for key, _ in _LIMITS))}: expected finite numbers")
    return TranscriptLimits(**found, counts_tokens="compression" in found)


def _audio_form(hub: HubFolder) -> AudioForm:
    path = hub.path / PROCESSOR
    known = read_optional_json(path)
    mels, frames = int(hub.sizes["mels"]), 2 * int(hub.sizes["states"])
    for key, computed in _FIXED:
        if known.get(key, computed) != computed:
            raise InvalidArgument(f"{path}: {key} is {known[key]!r}; expected {computed!r}")
    values = [
        known.get(key, usual)
        for key, usual in (("sampling_rate", 16000), ("n_fft", 400), ("hop_length", 160), ("feature_size", mels))
    ]
    if not all(type(value) is int and 1 <= value <= 1 << 20 for value in values):
        raise InvalidArgument(
            f"{path}: sampling_rate, n_fft, hop_length and feature_size are {values}; expected numbers of 1 or more"
        )
    rate, transform, hop, bands = values
    seconds = known.get("chunk_length", 30 if frames == 3000 else frames * hop // rate)
    if bands != mels or not isinstance(seconds, int) or seconds * rate != frames * hop or transform > frames * hop:
        raise InvalidArgument(
            f"{path}: feature_size is {bands} and chunk_length {seconds!r} s; expected {mels}, and {frames} frames of "
            f"{hop} samples, as config.json says"
        )
    if rate != 16000:  # the bands of the features end at 8 kHz
        raise InvalidArgument(f"{path}: sampling_rate is {rate}; expected 16000")
    return AudioForm(rate, transform, hop, mels, frames)


def _speech_tokens(hub: HubFolder) -> SpeechTokens:
    file, path = hub.path / TOKENIZER_FILE, hub.path / GENERATION_FILE
    if not file.is_file():
        raise NotFound(f"{file} is missing; transcripts need the model's tokenizer, so put it into the folder")
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as cause:  # what the library raises has no other class
        raise InvalidArgument(f"{file} is damaged: {cause}") from cause
    known = read_optional_json(path)
    start = _number(path, known, "decoder_start_token_id", tokenizer.token_to_id("<|startoftranscript|>"))
    end = _number(path, known, "eos_token_id", tokenizer.token_to_id("<|endoftext|>"))
    if start is None or end is None:
        raise InvalidArgument(f"{path}: expected decoder_start_token_id and eos_token_id, each the number of a token")
    silent = _number(path, known, "no_timestamps_token_id", tokenizer.token_to_id("<|notimestamps|>"))
    is_multilingual = known.get("is_multilingual", tokenizer.token_to_id("<|en|>") is not None) is not False
    languages = _languages(path, known, tokenizer) if is_multilingual else {}
    tasks = _table(path, known, "task_to_id") if is_multilingual else {}
    transcribe, translate = (
        tasks.get(name, tokenizer.token_to_id(f"<|{name}|>") if is_multilingual else None)
        for name in ("transcribe", "translate")
    )
    return SpeechTokens(
        start=start, end=end, no_timestamps=silent,
        previous=_number(path, known, "prev_sot_token_id", tokenizer.token_to_id("<|startofprev|>")),
        no_speech=None if silent is None else silent - 1, transcribe=transcribe, translate=translate,
        languages=languages, suppressed=_numbers(path, known, "suppress_tokens"),
        suppressed_first=_numbers(path, known, "begin_suppress_tokens"),
        last_beginning=_number(path, known, "max_initial_timestamp_index", None),
    )  # fmt: skip


def _languages(path: Path, known: Mapping[str, Any], tokenizer: Tokenizer) -> dict[str, int]:
    """Return tokens of languages by their codes."""
    table = _table(path, known, "lang_to_id") or tokenizer.get_vocab()
    return {match[1]: token for name, token in sorted(table.items()) if (match := _LANGUAGE.fullmatch(name))}


def _table(path: Path, known: Mapping[str, Any], key: str) -> dict[str, int]:
    table = known.get(key) or {}
    if not isinstance(table, dict) or not all(type(token) is int and token >= 0 for token in table.values()):
        raise InvalidArgument(f"{path}: {key} is not a table of tokens; expected names with whole numbers from 0")
    return table


def _number(path: Path, known: Mapping[str, Any], key: str, other: int | None) -> int | None:
    value = known.get(key)
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if value is not None and (type(value) is not int or value < 0):
        raise InvalidArgument(f"{path}: {key} is {value!r}; expected the number of one token")
    return other if value is None else value


def _numbers(path: Path, known: Mapping[str, Any], key: str) -> list[int]:
    value = known.get(key) or []
    if not isinstance(value, list) or not all(type(token) is int and token >= 0 for token in value):
        raise InvalidArgument(f"{path}: {key} is {value!r}; expected numbers of tokens")
    return value
