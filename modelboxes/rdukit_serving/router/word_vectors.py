"""Texts as vectors, and the text of a request that a router reads: its words."""

import re
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rdukit.errors import InvalidArgument

#: Header of an answer: its expert, and behind a router also the certainty.
EXPERT_HEADER: Final = "x-rdukit-expert"
#: Largest number of characters that are read, from a text's beginning.
MAX_CHARACTERS: Final = 20_000
#: A word, a number, or a sign: signs distinguish programs and formulas.
_WORD: Final = re.compile(r"[^\W\d_]+|\d+|[^\w\s]")
#: Length of a word's parts, so that words of one family share some.
_PART: Final = 4


def word_vector(text: str, size: int) -> NDArray[np.float32]:
    """Count words and their parts of four letters in ``size`` places chosen by a hash; all numbers are one word.

    A word that comes often counts little more. The same text gives the same vector everywhere.
    """
    words = ["0" if word.isdigit() else word for word in _WORD.findall(text[:MAX_CHARACTERS].casefold())]
    counts = Counter(words)
    for word, count in list(counts.items()):
        whole = f" {word} "
        for at in range(len(whole) - _PART + 1):
            counts[f"#{whole[at : at + _PART]}"] += count
    vector = np.zeros(size, np.float32)
    for part, count in counts.items():
        vector[zlib.crc32(part.encode()) % size] += 1 + np.log(count)
    return vector


def routed_text(body: Mapping[str, Any]) -> str:
    """Return the text of a request that determines its expert: the user's last message, or the prompt.

    Raises:
        InvalidArgument: the request has no text.
    """
    for field in ("messages", "input"):
        turns = body.get(field)
        if isinstance(turns, str) and turns:
            return turns
        for turn in reversed(turns if isinstance(turns, list) else []):
            if isinstance(turn, Mapping) and turn.get("role") == "user" and (text := _text_of(turn.get("content"))):
                return text
    prompt = body.get("prompt")
    if isinstance(prompt, list) and prompt:
        prompt = prompt[0]
    if isinstance(prompt, str) and prompt:
        return prompt
    raise InvalidArgument(
        "the request has no user text by which to choose an expert; name an expert as its model", field="model"
    )


def _text_of(content: object) -> str:
    if isinstance(content, str):
        return content
    parts: Sequence[Any] = content if isinstance(content, list) else []
    texts = [part.get("text") for part in parts if isinstance(part, Mapping)]
    return "\n".join(text for text in texts if isinstance(text, str))
