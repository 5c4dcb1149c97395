"""Passages of the text that ships with Python's documentation, as bytes, for models that read in both directions.

A passage is [CLS], bytes, [SEP]; a token is a byte's value, or one of the specials above them. Passages do not overlap.
Their number, some thousands, depends on the version of Python.

Axes: N passages, T tokens of a passage.
"""

from functools import cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rdukit.errors import InvalidArgument
from rdukit_zoo.registry import IGNORED, SizeValue

PADDING, CLASSIFY, SEPARATE, MASK = 256, 257, 258, 259
TOKENS: Final = 260
#: BERT's shares: predicted tokens, and, among these, tokens that are masked or replaced by others.
PREDICTED, MASKED, EXCHANGED = 0.15, 0.8, 0.1

Ids = NDArray[np.int64]


def draw_masked(count: int, seed: int, **sizes: SizeValue) -> dict[str, NDArray[Any]]:
    """Return passages ``tokens`` with masked ones among them, ``types``, ``mask`` and ``labels``, each [N, T] int64.

    Labels are -100 for tokens that are not predicted; [CLS] and [SEP] never are.

    Raises:
        InvalidArgument: the text has fewer passages of this length, or the vocabulary has no room for bytes.
    """
    chance = np.random.default_rng(seed)
    length = _check_sizes(sizes)
    tokens_NT = _choose(np.concatenate([_cut(text, length) for _, text in _topics()]), count, chance)
    inner = np.zeros(tokens_NT.shape, bool)
    inner[:, 1:-1] = True
    given, labels = mask_tokens(tokens_NT, inner, MASK, PADDING, chance)
    return {**_passage(given), "labels": labels}


def mask_tokens(
    tokens_NT: Ids, may_be: NDArray[np.bool_], mask: int, words: int, chance: np.random.Generator
) -> tuple[Ids, Ids]:
    """Return a model's input, and its labels (-100 for other tokens), both [N, T].

    Args:
        may_be: mask [N, T] of tokens that may be predicted; the first of a passage is predicted if none is drawn.
        mask: the token for hidden ones. words: number of tokens, from 0, that may replace another.
    """
    predicted = may_be & (chance.random(tokens_NT.shape) < PREDICTED)
    first = may_be.argmax(1)
    rows = np.arange(len(tokens_NT))
    predicted[rows, first] |= may_be[rows, first] & ~predicted.any(1)  # each passage has a loss
    fate = chance.random(tokens_NT.shape)
    given = np.where(predicted & (fate < MASKED), mask, tokens_NT)
    others = chance.integers(0, words, tokens_NT.shape)
    given = np.where(predicted & (fate >= MASKED) & (fate < MASKED + EXCHANGED), others, given)
    return given, np.where(predicted, tokens_NT, IGNORED)


def draw_plain(count: int, seed: int, **sizes: SizeValue) -> dict[str, NDArray[Any]]:
    """Return passages ``tokens``, ``types`` and ``mask``, each [N, T] int64.

    Raises:
        InvalidArgument: the text has fewer passages of this length, or the vocabulary has no room for bytes.
    """
    length = _check_sizes(sizes)
    passages = np.concatenate([_cut(text, length) for _, text in _topics()])
    return _passage(_choose(passages, count, np.random.default_rng(seed)))


def draw_topics(count: int, seed: int, **sizes: SizeValue) -> dict[str, NDArray[Any]]:
    """Return passages ``tokens``, ``types`` and ``mask`` [N, T], and ``label`` [N]: which topic each is from.

    The topics are the ``num_classes`` longest of ``pydoc_data.topics``, with as many passages of each.

    Raises:
        InvalidArgument: the text has fewer passages of this length, or the vocabulary has no room for bytes.
    """
    chance = np.random.default_rng(seed)
    length, classes = _check_sizes(sizes), int(sizes["num_classes"])
    parts = [chance.permutation(_cut(text, length)) for _, text in _topics()[:classes]]
    each = min(map(len, parts))
    tokens = np.concatenate([part[:each] for part in parts])
    labels = np.repeat(np.arange(len(parts)), each)
    chosen = _choose(np.arange(len(tokens)), count, chance)
    return {**_passage(tokens[chosen]), "label": labels[chosen]}


@cache
def _topics() -> list[tuple[str, bytes]]:
    """Return the topics of Python's documentation, the longest first."""
    from pydoc_data.topics import topics

    return sorted(((name, text.encode()) for name, text in topics.items()), key=lambda pair: (-len(pair[1]), pair[0]))


def _check_sizes(sizes: dict[str, SizeValue]) -> int:
    """Return the length of a passage in tokens."""
    if int(sizes["vocabulary"]) < TOKENS:
        raise InvalidArgument(
            f"vocabulary is {sizes['vocabulary']}; expected at least {TOKENS} for generated texts: bytes and special "
            "tokens"
        )
    return int(sizes["context_length"])


def _cut(text: bytes, length: int) -> Ids:
    """Return passages [N, T] of a text; the rest is left out."""
    inner = np.frombuffer(text, np.uint8)
    inner = inner[: len(inner) // (length - 2) * (length - 2)].reshape(-1, length - 2).astype(np.int64)
    return np.pad(inner, ((0, 0), (1, 1)), constant_values=((0, 0), (CLASSIFY, SEPARATE)))


def _choose(values: Ids, count: int, chance: np.random.Generator) -> Ids:
    if count > len(values):
        raise InvalidArgument(
            f"Python's documentation has {len(values)} passages of this kind and length, but {count} are requested; "
            "request fewer samples, or a smaller context_length"
        )
    return chance.permutation(values)[:count]


def _passage(tokens_NT: Ids) -> dict[str, NDArray[Any]]:
    return {"tokens": tokens_NT, "types": np.zeros_like(tokens_NT), "mask": np.ones_like(tokens_NT)}
