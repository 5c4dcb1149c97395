"""Words of a transcript with their times: tokens that belong together, with the punctuation next to them. Pure.

Source: OpenAI's and transformers' words of Whisper.
"""

import string
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

#: Languages that write no spaces between words; each of their characters is a word.
WITHOUT_SPACES: Final = frozenset({"zh", "ja", "th", "lo", "my", "yue"})
#: Punctuation that belongs to the word behind it, and to the word before it.
_OPENING: Final = "\"'“¿([{-"
_CLOSING: Final = "\"'.。,，!！?？:：”)]}、"


@dataclass(frozen=True, slots=True)
class SpokenWord:
    """Word with the seconds between which it is spoken."""

    text: str
    start_s: float
    end_s: float


def words_of(pieces: Sequence[bytes], spans: Sequence[tuple[float, float]], language: str) -> list[SpokenWord]:
    """Return the words of tokens, whose bytes are ``pieces`` and which are spoken in ``spans`` of seconds."""
    units = _characters(pieces, spans)
    words = units if language in WITHOUT_SPACES else _by_spaces(units)
    words = _with_closing(_with_opening(words))
    stripped = [SpokenWord(word.text.strip(), word.start_s, word.end_s) for word in words]
    return [word for word in stripped if word.text]


def _characters(pieces: Sequence[bytes], spans: Sequence[tuple[float, float]]) -> list[SpokenWord]:
    """Join tokens until their bytes are complete characters."""
    found: list[SpokenWord] = []
    begun, start_s = b"", 0.0
    for number, (piece, (from_s, to_s)) in enumerate(zip(pieces, spans, strict=True), 1):
        start_s = start_s if begun else from_s
        begun += piece
        try:
            text = begun.decode()
        except UnicodeDecodeError as error:
            is_unfinished = error.end == len(begun) and error.reason == "unexpected end of data"
            if is_unfinished and number < len(pieces):
                continue
            text = begun.decode(errors="replace")
        found.append(SpokenWord(text, start_s, to_s))
        begun = b""
    return found


def _joined(one: SpokenWord, other: SpokenWord) -> SpokenWord:
    return SpokenWord(one.text + other.text, one.start_s, other.end_s)


def _by_spaces(units: Sequence[SpokenWord]) -> list[SpokenWord]:
    words: list[SpokenWord] = []
    for unit in units:
        if not words or unit.text.startswith(" ") or unit.text.strip() in string.punctuation:
            words.append(unit)
        else:
            words[-1] = _joined(words[-1], unit)
    return words


def _with_opening(words: Sequence[SpokenWord]) -> list[SpokenWord]:
    found: list[SpokenWord] = []
    for word in reversed(words):
        is_opening = word.text.startswith(" ") and word.text.strip() and word.text.strip() in _OPENING
        if found and is_opening:
            found[-1] = _joined(word, found[-1])
        else:
            found.append(word)
    return found[::-1]


def _with_closing(words: Sequence[SpokenWord]) -> list[SpokenWord]:
    found: list[SpokenWord] = []
    for word in words:
        if found and word.text and word.text in _CLOSING and not found[-1].text.endswith(" "):
            found[-1] = _joined(found[-1], word)
        else:
            found.append(word)
    return found
