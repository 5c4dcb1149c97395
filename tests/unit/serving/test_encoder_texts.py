"""Texts of a model with an encoder: its prompt is read at once, and some tokens come whatever the logits are."""

from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from rdukit.errors import InvalidArgument
from rdukit_serving.shape import SERVE, Shape, TextSizes, shape_of
from rdukit_serving.text.constraints import Constraints
from rdukit_serving.text.generation import Generation, ModelTokens
from rdukit_serving.text.rows import Row
from rdukit_serving.text.sampling import Sampler, SamplingOptions
from rdukit_serving.text.token_bytes import TokenBytes
from support import shows

pytestmark = shows("encoder-decoders")

SIZES = TextSizes(context=6, prompt=4, vocabulary=9, texts=2, source=4, start=7)
MESSAGE: dict[str, Any] = {
    "number": 1, "max_tokens": 9, "sampling": {"temperature": 0.0}, "stop": [], "top_logprobs": None, "echo": False,
    "is_rendered": False, "form": None, "keeps_special": False,
}  # fmt: skip


def begin(prompt: list[int], forced: tuple[int | None, int | None] = (None, None), **fields: Any) -> tuple[Any, Any]:
    """Return a text that begins in a row, and the list of what is told of it."""
    tokenizer = Tokenizer(WordLevel({str(number): number for number in range(9)}))
    constraints = Constraints(tokenizer.to_str(), 9, frozenset([2]))
    tokens = ModelTokens(tokenizer, TokenBytes(tokenizer), constraints, frozenset([2]), {}, forced)
    told: list[dict[str, Any]] = []
    text = Generation(prompt, {**MESSAGE, **fields}, tokens, SIZES, lambda number, **event: told.append(event))
    text.begin(Row(0), 0)
    return text, told


def likely(token: int) -> Any:
    return np.eye(9, dtype=np.float32)[token]


def test_a_source_is_read_at_once_and_the_target_begins_behind_its_own_first_token() -> None:
    text, told = begin([1, 3, 4, 1])
    assert text.is_reading and text.part(2) == [1, 3, 4, 1]
    text.take_part(text.part(2), likely(5))
    assert not text.is_reading and text.row.tokens == [7]
    assert text.written() == [(0, 5, 1, None)]
    for token in (6, 8, 3, 1):
        text.take(likely(token)[None])
    assert text.is_over and text.row.tokens == [7, 5, 6, 8, 3]
    assert (told[-1]["reason"], told[-1]["prompt_tokens"], told[-1]["completion_tokens"]) == ("length", 4, 5)


def test_forced_tokens_come_first_and_at_the_limit() -> None:
    text, told = begin([1], (8, 2), max_tokens=3)
    text.take_part(text.part(4), likely(5))
    text.take(likely(6)[None])
    text.take(likely(3)[None])
    assert [event["text"] for event in told[:-1]] == ["8", " 6"]
    assert (told[-1]["reason"], told[-1]["completion_tokens"]) == ("length", 2)


def test_no_end_is_forced_where_none_ends_the_text() -> None:
    text, told = begin([1], (None, 2), max_tokens=2, sampling={"temperature": 0.0, "ignore_eos": True})
    text.take_part(text.part(4), likely(5))
    text.take(likely(6)[None])
    assert [event["text"] for event in told[:-1]] == ["5", " 6"]


@pytest.mark.parametrize(
    ("prompt", "fields", "words"),
    [
        ([1] * 5, {}, "it has 5 tokens; expected 1 to 4"),
        ([], {}, "it has 0 tokens"),
        ([1], {"echo": True}, "echo: an encoder reads the prompt"),
    ],
)
def test_what_an_encoder_cannot_read_is_refused(prompt: list[int], fields: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        begin(prompt, **fields)


def test_runs_of_tokens_are_not_repeated() -> None:
    sampler = Sampler(SamplingOptions(temperature=0.0, no_repeat_ngram_size=2), [7])
    assert [sampler.choose(likely(5) + likely(6) / 2) for _ in range(5)] == [5, 5, 6, 5, 0]
    one = Sampler(SamplingOptions(temperature=0.0, no_repeat_ngram_size=1), [7])
    assert [one.choose(likely(7) + likely(6) / 2) for _ in range(3)] == [6, 0, 1]


def test_a_pef_says_how_long_a_source_may_be_and_what_a_target_begins_with() -> None:
    shape = Shape("seq2seq", {}, 2, "f32", "text-to-text", SERVE, text=SIZES)

    class Named:
        metadata = shape.to_metadata()

    assert shape_of(Named(), "x").text == SIZES  # type: ignore[arg-type]
    assert (SIZES.most_prompt, SIZES.begin_of([1, 2]), SIZES.figures()["source"]) == (4, [7], 4)
    plain = TextSizes(6, 4, 9)
    assert (plain.most_prompt, plain.begin_of([1, 2]), "source" in plain.figures()) == (5, [1, 2], False)
    for one, other in ((SIZES, plain), (plain, SIZES)):
        with pytest.raises(InvalidArgument, match="expected two decoders"):
            one.check_draft(other)
