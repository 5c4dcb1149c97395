"""Tokens of prompts: the same as the tokenizer's, and no more than a context holds are looked for."""

from collections.abc import Sequence
from typing import Any

import pytest
from tokenizers import Tokenizer

from rdukit.errors import InvalidArgument
from rdukit_modelbox.preprocessing.tokenizer import byte_level_tokenizer
from rdukit_serving.text.prompt_tokens import SLICE, PromptReader, prompt_reader
from support import shows

pytestmark = shows("inference", "serve")


class Counted:
    """A tokenizer whose characters are counted."""

    def __init__(self) -> None:
        self.inner: Tokenizer = byte_level_tokenizer().tokenizer
        self.characters = 0

    def encode_batch_fast(self, texts: Sequence[str], **how: Any) -> Any:
        self.characters += sum(map(len, texts))
        return self.inner.encode_batch_fast(texts, **how)


@pytest.fixture
def counted() -> Counted:
    return Counted()


def reader(counted: Counted, token_bytes: int) -> PromptReader:
    return PromptReader(counted, token_bytes)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["", "hello", "ü😀 " * 9000, "a" * (3 * SLICE + 1)])
def test_the_tokens_of_a_prompt_are_the_tokenizers(counted: Counted, text: str) -> None:
    assert reader(counted, 4).read(text, True, 1 << 17) == counted.inner.encode(text).ids


def test_the_longest_token_says_how_many_bytes_a_context_has() -> None:
    assert prompt_reader(byte_level_tokenizer().tokenizer).token_bytes >= 1


@pytest.mark.parametrize("text", ["a" * 20_000_000, "ü" * 1_000_001])
def test_a_prompt_of_more_bytes_than_a_context_has_is_not_tokenized(counted: Counted, text: str) -> None:
    with pytest.raises(InvalidArgument, match="expected 1 to 1000 tokens, which have up to 2000000 bytes") as refused:
        reader(counted, 2000).read(text, True, 1000)
    assert (refused.value.detail["field"], counted.characters) == ("prompt", 0)


def test_a_prompt_of_too_many_tokens_is_tokenized_up_to_there(counted: Counted) -> None:
    with pytest.raises(InvalidArgument, match="input: it has more than 2000 tokens; expected 1 to 1000"):
        reader(counted, 100_000).read("a" * 20_000_000, True, 1000, "input")
    assert counted.characters <= SLICE


def test_a_prompt_that_is_somewhat_too_long_has_all_of_its_tokens(counted: Counted) -> None:
    assert len(reader(counted, 8).read("a" * 1500, True, 1000)) == 1500
