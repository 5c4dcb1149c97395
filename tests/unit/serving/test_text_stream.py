"""Pieces of generated text: whole characters only, and nothing of a stop sequence."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rdukit_serving.text.token_bytes import TextStream
from support import shows

pytestmark = shows("inference", "text-models")


def decode(tokens: Sequence[int]) -> str:
    """A token is a byte."""
    return bytes(tokens).decode(errors="replace")


def pieces(text: str | bytes, *stops: str) -> tuple[list[str], str | None]:
    stream = TextStream(decode, stops)
    data = text if isinstance(text, bytes) else text.encode()
    shown = [stream.push(byte) for byte in data] + [stream.finish()]
    return [piece for piece in shown if piece], stream.stopped_by


def test_a_character_of_several_tokens_comes_whole_when_it_is_complete() -> None:
    assert pieces("a€𝄞é") == (["a", "€", "𝄞", "é"], None)
    assert pieces("ok€".encode()[:-1]) == (["o", "k"], None)


def test_bytes_that_are_no_character_become_replacements_and_do_not_hold_up_the_text() -> None:
    shown, _ = pieces(b"a\xff\xff\xffb")
    assert "".join(shown) == "a\ufffd\ufffd\ufffdb"


def test_a_stop_sequence_ends_the_text_before_it_and_its_beginning_is_held_back() -> None:
    assert pieces("one\n\ntwo", "\n\n") == (["o", "n", "e"], "\n\n")
    assert pieces("one\ntwo", "\n\n") == (["o", "n", "e", "\nt", "w", "o"], None)
    assert pieces("abab!", "aba") == ([], "aba")
    assert pieces("aab", "ab") == (["a"], "ab")
    assert pieces("ends with <", "<end>")[0][-1] == "<"
    assert pieces("x<end>", "end", "<end>") == (["x", "<"], "end")
    assert pieces("text", "") == (["t", "e", "x", "t"], None)


def test_a_stop_sequence_inside_one_token_hides_the_rest_of_it() -> None:
    words = ["Hello", " wor", "ld STOP more", " and"]
    stream = TextStream(lambda tokens: "".join(words[token] for token in tokens), ["STOP"])
    assert [stream.push(token) for token in range(4)] == ["Hello", " wor", "ld ", ""]
    assert stream.finish() == "" and stream.stopped_by == "STOP"


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=120), st.lists(st.text(min_size=1, max_size=4), max_size=3))
def test_the_pieces_together_are_the_text_up_to_the_first_stop_sequence(text: str, stops: list[str]) -> None:
    shown, stopped_by = pieces(text, *stops)
    # Token by token the stop sequence that ends first is the one that is found.
    ends = [(place + len(stop), place) for stop in stops if (place := text.find(stop)) >= 0]
    wanted = text[: min(ends)[1]] if ends else text
    assert "".join(shown) == wanted
    assert (stopped_by is None) == (not ends)


@pytest.mark.parametrize("repeats", [1, 7])
def test_long_texts_are_decoded_in_windows_and_stay_the_same(repeats: int) -> None:
    text = "Zürich, 𝄞 and €: a text that is longer than a window of tokens. " * repeats
    assert "".join(pieces(text)[0]) == text
