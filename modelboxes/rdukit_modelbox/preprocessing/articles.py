"""Records of text → pieces to tokenize, and tokenized pieces → units to pack. Pure.

A record is a plain text, a pair of prompt and completion, or a list of such pairs. Axes: P pieces, T tokens, U units.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from rdukit.errors import IllegalValue
from rdukit_modelbox.preprocessing.packing import Ints, Tokens, TokenType

#: What a piece closes.
OPEN: Final = 0
CLOSES_PAIR: Final = 1
CLOSES_ARTICLE: Final = 3


@dataclass(frozen=True, slots=True)
class ArticlePolicy:
    """The way records become tokens. Source: generative_data_prep, README "Flags", each under the same name."""

    prompt_keyword: str = "prompt"
    completion_keyword: str = "completion"
    prompt_prefix: str = ""
    prompt_postfix: str = ""
    disable_space_separator: bool = False
    keep_prompt_only_sequences: bool = False
    packing_boundary: str = "jsonl"
    attention_boundary: str = "jsonl"


@dataclass(slots=True)
class Pieces:
    """Texts to tokenize, in order, each with its role."""

    texts: list[str] = field(default_factory=list)
    types: list[int] = field(default_factory=list)
    closes: list[int] = field(default_factory=list)
    #: Index of each piece's unit, from 0 up.
    units: list[int] = field(default_factory=list)
    count_units: int = 0


def make_decoder(policy: ArticlePolicy) -> "msgspec.json.Decoder[Any]":
    """Decode records that are JSON: a text, an object with the two keys (others are ignored), or a list of these.

    Raises:
        IllegalValue: both keys are the same.
    """
    if policy.prompt_keyword == policy.completion_keyword:
        raise IllegalValue(
            f"prompt_keyword and completion_keyword are both {policy.prompt_keyword!r}; expected two different keys"
        )
    return msgspec.json.Decoder(str | pair_type(policy) | list[pair_type(policy)])  # type: ignore[misc]


def pair_type(policy: ArticlePolicy) -> Any:
    """Return the type of one pair: ``completion`` must be there, ``prompt`` need not."""
    return msgspec.defstruct(
        "Pair",
        [("completion", str | None), ("prompt", str | None, None)],
        rename={"completion": policy.completion_keyword, "prompt": policy.prompt_keyword},
        gc=False,
    )


def cut_pieces(records: Iterable[Any], policy: ArticlePolicy) -> Pieces:
    """Return the pieces of decoded records.

    Source: generative_data_prep, README: one space between prompt and completion unless ``disable_space_separator``; a
    pair without completion is left out unless ``keep_prompt_only_sequences``. An end-of-text token follows each pair; a
    record's last one is a separator (each one with ``attention_boundary=prompt_completion_pair``).
    """
    pieces = Pieces()
    texts, types, closes, units = pieces.texts, pieces.types, pieces.closes, pieces.units
    unit = 0
    for record in records:
        if isinstance(record, str):
            if record:
                texts.append(record)
                types.append(TokenType.COMPLETION)
                closes.append(CLOSES_ARTICLE)
                units.append(unit)
                unit += 1
        else:
            unit = _cut_pairs(record if isinstance(record, list) else [record], policy, pieces, unit)
    pieces.count_units = unit
    return pieces


def _cut_pairs(pairs: Sequence[Any], policy: ArticlePolicy, pieces: Pieces, unit: int) -> int:
    texts, types, closes, units = pieces.texts, pieces.types, pieces.closes, pieces.units
    each_is_article = policy.attention_boundary == "prompt_completion_pair"
    each_is_unit = policy.packing_boundary == "prompt_completion_pair"
    last = len(pairs) - 1
    begun = len(texts)
    for index, pair in enumerate(pairs):
        prompt, completion = pair.prompt, pair.completion
        if completion or policy.keep_prompt_only_sequences:
            if not policy.disable_space_separator:
                prompt = prompt.rstrip(" ") if prompt else prompt
                completion = " " + completion.lstrip(" ") if completion else completion
            closing = CLOSES_ARTICLE if each_is_article else CLOSES_PAIR
            if prompt:
                texts.append(f"{policy.prompt_prefix}{prompt}{policy.prompt_postfix}")
                types.append(TokenType.PROMPT)
                closes.append(OPEN if completion else closing)
                units.append(unit)
            if completion:
                texts.append(completion)
                types.append(TokenType.COMPLETION)
                closes.append(closing)
                units.append(unit)
        if len(texts) > begun and (each_is_unit or index == last):
            if index == last:
                closes[-1] = CLOSES_ARTICLE
            unit += 1
            begun = len(texts)
    return unit


def join_tokens(pieces: Pieces, ids_of_pieces: Sequence[Sequence[int]], end_id: int, begin_id: int | None) -> Tokens:
    """Return the units' tokens with end-of-text tokens inserted.

    A tokenizer may put begin and end tokens around each text; those inside a pair are removed. The end token never
    occurs twice, nor does the begin token of a text that already has one, as from chat templates.

    Args:
        ids_of_pieces: token ids of each piece.
    """
    ids_of_pieces = [
        trim(ids, end_id, begin_id, is_inside=index > 0 and pieces.closes[index - 1] == OPEN)
        for index, ids in enumerate(ids_of_pieces)
    ]
    count = len(ids_of_pieces)
    lengths_P = np.fromiter(map(len, ids_of_pieces), np.int64, count)
    ids_T: Ints = np.fromiter(chain.from_iterable(ids_of_pieces), np.int32, int(lengths_P.sum()))
    types_P = np.array(pieces.types, np.int32)
    closes_P = np.array(pieces.closes, np.int32)
    if count and (lengths_P == 0).any():
        closes_P = _without_empty(lengths_P, closes_P)
    has_end_P = (closes_P != OPEN).astype(np.int64)
    out_lengths_P = lengths_P + has_end_P
    out_ids_T = np.full(int(out_lengths_P.sum()), end_id, np.int32)
    out_types_T = np.repeat(types_P, out_lengths_P)
    out_ids_T[np.arange(len(ids_T)) + np.repeat(np.cumsum(has_end_P) - has_end_P, lengths_P)] = ids_T
    ends_P = np.cumsum(out_lengths_P) - 1
    is_end_P = has_end_P > 0
    out_types_T[ends_P[is_end_P]] = np.where(
        closes_P[is_end_P] == CLOSES_ARTICLE, TokenType.SEPARATOR, TokenType.COMPLETION
    )
    lengths_U: NDArray[np.int64] = np.bincount(
        np.array(pieces.units, np.int64), weights=out_lengths_P, minlength=pieces.count_units
    ).astype(np.int64)
    return Tokens(out_ids_T, out_types_T, lengths_U)


def trim(ids: Sequence[int], end_id: int, begin_id: int | None, *, is_inside: bool) -> Sequence[int]:
    """Return a piece's tokens without its end, and without a begin that is there twice, or stands inside a pair."""
    begins = 1 if is_inside else 2
    if begin_id is not None and len(ids) >= begins and all(token == begin_id for token in ids[:begins]):
        ids = ids[1:]
    return ids[:-1] if ids and ids[-1] == end_id else ids


def _without_empty(lengths_P: NDArray[np.int64], closes_P: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return ``closes_P`` with pairs that have no tokens left open, so that they get no end token."""
    closes = closes_P.copy()
    pair_has_tokens = False
    for index, (length, closing) in enumerate(zip(lengths_P.tolist(), closes_P.tolist(), strict=True)):
        pair_has_tokens |= length > 0
        if closing != OPEN:
            if not pair_has_tokens:
                closes[index] = OPEN
            pair_has_tokens = False
    return closes
