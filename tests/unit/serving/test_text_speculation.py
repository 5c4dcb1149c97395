"""Guesses of a text's next tokens: what is found in the text, how far it is trusted, and how many are tried."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from rdukit.errors import InvalidArgument
from rdukit_serving.device.client import draft_files
from rdukit_serving.shape import TextSizes
from rdukit_serving.text.constraints import Constraints
from rdukit_serving.text.generation import Generation, ModelTokens
from rdukit_serving.text.rows import Row
from rdukit_serving.text.speculation import Lookup, Outlook, Trust, share_places
from rdukit_serving.text.token_bytes import TokenBytes
from support import shows

pytestmark = shows("inference", "text-models", "speculation")


def lookup_of(tokens: list[int]) -> Lookup:
    lookup = Lookup()
    lookup.add(tokens)
    return lookup


def test_what_followed_the_longest_known_end_last_is_guessed() -> None:
    assert lookup_of([1, 2, 3, 4, 5, 1, 2, 3]).guess(4) == [4, 5, 1, 2]
    # [2, 3] was followed by 9 last, [1, 2, 3] by 4.
    assert lookup_of([1, 2, 3, 4, 7, 2, 3, 9, 1, 2, 3]).guess(2) == [4, 7]
    assert lookup_of([2, 3, 4, 7, 2, 3, 9, 8, 2, 3]).guess(2) == [9, 8]


def test_a_text_that_repeats_itself_is_guessed_beyond_its_end() -> None:
    assert lookup_of([5, 1, 2, 1, 2]).guess(5) == [1, 2, 1, 2, 1]
    assert lookup_of([7, 7, 7]).guess(3) == [7, 7, 7]


def test_nothing_is_guessed_of_a_text_that_is_new() -> None:
    for text in ([], [1], [1, 1], list(range(50)), [1, 2, 1, 3, 1]):
        assert lookup_of(text).guess(4) == []
    assert lookup_of([1, 2, 3, 1, 2]).guess(0) == lookup_of([1, 2, 3, 1, 2]).guess(-1) == []


def test_a_text_is_looked_through_only_when_a_guess_is_wanted() -> None:
    tokenizer = Tokenizer(WordLevel({str(number): number for number in range(9)}))
    tokens = ModelTokens(tokenizer, TokenBytes(tokenizer), Constraints(tokenizer.to_str(), 9, frozenset()), frozenset())
    message: dict[str, Any] = {
        "number": 1, "max_tokens": 9, "sampling": {"temperature": 0.0}, "stop": [], "top_logprobs": None, "echo": False,
        "is_rendered": False, "form": None, "keeps_special": False,
    }  # fmt: skip
    text = Generation(
        [1, 2, 3, 1], message, tokens, TextSizes(context=32, prompt=8, vocabulary=9), lambda number, **event: None
    )
    text.begin(Row(0), 0)
    text.take_part(text.prompt, np.eye(9, dtype=np.float32)[2])
    assert len(text._lookup) == 0
    assert text.guess(3) == Outlook(0.5, 3)
    assert [token for _, token, *_ in text.written(3)] == [2, 3, 1, 2]
    text.take(np.eye(9, dtype=np.float32)[[3, 1, 2, 3]])
    assert text.guess(2).count == 2
    assert text.tokens == [1, 2, 3, 1, 2, 3, 1, 2, 3]


@given(st.lists(st.integers(0, 3), max_size=60), st.integers(1, 9))
def test_a_guess_is_what_plain_search_finds(text: list[int], most: int) -> None:
    expected: list[int] = []
    for size in (4, 3, 2):
        places = [at for at in range(size, len(text)) if text[at - size : at] == text[-size:]]
        if places and size <= len(text):
            whole = list(text)
            for i in range(most):
                whole.append(whole[places[-1] + i])
            expected = whole[len(text) :]
            break
    assert lookup_of(text).guess(most) == expected


def test_trust_follows_what_was_right_of_late() -> None:
    trust = Trust()
    assert trust.rate == trust.first == 0.5
    assert trust.note([1, 2, 3], [1, 2]) == 2
    assert trust.rate > 0.6
    for _ in range(20):
        assert trust.note([1, 2], [3]) == 0
    assert trust.rate < 0.1
    for _ in range(20):
        assert trust.note([1, 2], [1, 3]) == 1
    assert 0.4 < trust.rate < 0.6
    # Nothing tried and nothing made say nothing.
    before = trust.rate
    assert trust.note([], [1]) == trust.note([1], []) == 0
    assert trust.rate == before
    for _ in range(20):
        trust.note([1], [2])
    for _ in range(400):
        trust.rest()
    assert trust.rate > 0.45


WIDTHS = (1, 2, 4, 8)
SECONDS = {1: 1.0, 2: 1.1, 4: 1.3, 8: 1.8}


def share(*guesses: tuple[float, int], drafted: float | None = None) -> list[int]:
    """Share the room among guesses, all of a draft that takes so many seconds or all found in the text."""
    outlooks = [Outlook(rate, count, drafted is not None) for rate, count in guesses]
    return share_places(outlooks, WIDTHS, SECONDS, drafted or 0.0)


def test_as_many_guesses_are_tried_as_give_the_most_tokens_a_second() -> None:
    assert share((0.99, 7)) == [7]
    assert share((0.5, 7)) == [3]
    assert share((0.07, 7)) == [0]
    assert share((0.99, 0)) == [0]
    # A run that costs as much as the tokens one by one is not made wider.
    assert share_places([Outlook(0.9, 7)], (1, 8), {1: 1.0, 8: 9.0}) == [0]


def test_a_draft_is_asked_as_long_as_its_runs_pay() -> None:
    assert share((0.99, 7), drafted=0.01) == [7]
    assert share((0.9, 7), drafted=0.2) == [3]
    assert share((0.9, 7), drafted=0.9) == [0]
    # Little is not worth it.
    assert share((0.9, 1), drafted=0.5) == [1]
    assert share((0.9, 1), drafted=0.65) == [0]
    # What was found in the text costs no run of the draft.
    outlooks = [Outlook(0.9, 7, is_drafted=True), Outlook(0.9, 7)]
    assert share_places(outlooks, WIDTHS, SECONDS, 5.0) == [0, 6]


def test_texts_share_the_room_by_how_far_they_are_trusted() -> None:
    assert share((0.9, 7), (0.0, 0), (0.75, 7), (0.9, 1)) == [2, 0, 1, 1]
    # Where there is no room nothing is tried, and what is free anyway is used.
    assert share(*[(0.99, 7)] * 8) == [0] * 8
    assert share(*[(0.1, 7)] * 7) == [1] + [0] * 6
    assert share(*[(0.01, 7)] * 7) == [0] * 7


@given(st.lists(st.tuples(st.floats(0, 1), st.integers(0, 9)), min_size=1, max_size=8), st.sampled_from([None, 0.1]))
def test_no_more_is_tried_than_is_guessed_or_has_room(guesses: list[tuple[float, int]], drafted: float | None) -> None:
    counts = share(*guesses, drafted=drafted)
    assert all(0 <= count <= guessed for count, (_, guessed) in zip(counts, guesses, strict=True))
    assert len(guesses) + sum(counts) <= 8


def test_a_draft_of_other_tokens_or_for_less_is_refused() -> None:
    model = TextSizes(context=256, prompt=64, vocabulary=300, texts=4)
    model.check_draft(replace(model, context=512, texts=8, prompt=16))
    with pytest.raises(InvalidArgument, match="draft has 301 tokens; expected 300"):
        model.check_draft(replace(model, vocabulary=301))
    with pytest.raises(InvalidArgument, match="context_length=128; expected 256 or more"):
        model.check_draft(replace(model, context=128))
    with pytest.raises(InvalidArgument, match="batch_size=1; expected 4 or more"):
        model.check_draft(replace(model, texts=1))
    with pytest.raises(InvalidArgument, match="draft_checkpoint missing; expected both"):
        draft_files(Path("a.pef"), None)
