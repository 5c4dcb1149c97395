"""Guesses of a text's next tokens: what is found in the text, how far it is trusted, and how many are tried."""

from hypothesis import given
from hypothesis import strategies as st

from rdukit_serving.text.speculation import Lookup, Trust, share_places


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
    trust.note(40, False)
    assert trust.rate > 0.99
    for _ in range(20):
        trust.note(0, True)
    assert trust.rate < 0.1
    for _ in range(20):
        trust.note(1, True)
    assert 0.4 < trust.rate < 0.6


WIDTHS = (1, 2, 4, 8)
SECONDS = {1: 1.0, 2: 1.1, 4: 1.3, 8: 1.8}


def test_as_many_guesses_are_tried_as_give_the_most_tokens_a_second() -> None:
    assert share_places([(0.99, 7)], WIDTHS, SECONDS) == [7]
    assert share_places([(0.5, 7)], WIDTHS, SECONDS) == [3]
    assert share_places([(0.07, 7)], WIDTHS, SECONDS) == [0]
    assert share_places([(0.99, 0)], WIDTHS, SECONDS) == [0]
    # A run that costs as much as the tokens one by one is not made wider.
    assert share_places([(0.9, 7)], (1, 8), {1: 1.0, 8: 9.0}) == [0]


def test_texts_share_the_room_by_how_far_they_are_trusted() -> None:
    assert share_places([(0.9, 7), (0.0, 0), (0.75, 7), (0.9, 1)], WIDTHS, SECONDS) == [2, 0, 1, 1]
    # Where there is no room nothing is tried, and what is free anyway is used.
    assert share_places([(0.99, 7)] * 8, WIDTHS, SECONDS) == [0] * 8
    assert share_places([(0.1, 7)] * 7, WIDTHS, SECONDS) == [1] + [0] * 6
    assert share_places([(0.01, 7)] * 7, WIDTHS, SECONDS) == [0] * 7


@given(st.lists(st.tuples(st.floats(0, 1), st.integers(0, 9)), min_size=1, max_size=8))
def test_no_more_is_tried_than_is_guessed_or_has_room(guesses: list[tuple[float, int]]) -> None:
    counts = share_places(guesses, WIDTHS, SECONDS)
    assert all(0 <= count <= guessed for count, (_, guessed) in zip(counts, guesses, strict=True))
    assert len(guesses) + sum(counts) <= 8
