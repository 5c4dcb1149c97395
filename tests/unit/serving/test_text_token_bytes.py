"""The bytes of tokens, in the forms that vocabularies have them."""

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from rdukit_modelbox.preprocessing.tokenizer import byte_level_tokenizer, learn_tokenizer
from rdukit_serving.text.token_bytes import TokenBytes, characters, shown
from support import shows

pytestmark = shows("inference")

TEXT = "é€😀 a  b\n<|endoftext|>"


def test_byte_level_tokens_are_their_bytes_and_special_ones_their_name() -> None:
    told = TokenBytes(byte_level_tokenizer().tokenizer)
    assert [told.of(token) for token in range(256)] == [bytes([byte]) for byte in range(256)]
    assert told.of(256) == b"<|endoftext|>"
    assert told.of(257) == b""


def test_the_bytes_of_learned_tokens_add_up_to_the_text() -> None:
    tokenizer = learn_tokenizer(["the théâtre of the € and 😀"] * 9, 300).tokenizer
    told = TokenBytes(tokenizer)
    assert b"".join(told.of(token) for token in tokenizer.encode(TEXT).ids) == TEXT.encode()


@pytest.mark.parametrize("decoder", ["metaspace", "llama"])
def test_tokens_of_pieces_keep_their_spaces_and_byte_tokens_are_bytes(decoder: str) -> None:
    tokenizer = Tokenizer(
        models.BPE({"<unk>": 0, "<0xE2>": 1, "▁a": 2, "a": 3, "é": 4, "<0xZZ>": 5}, [], byte_fallback=True)
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = (
        decoders.Sequence([decoders.Metaspace(), decoders.ByteFallback()])
        if decoder == "metaspace"
        else decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    )
    tokenizer.add_special_tokens([AddedToken("▁<s>", special=True)])
    told = TokenBytes(tokenizer)
    assert [told.of(token) for token in range(5)] == [b"<unk>", b"\xe2", b" a", b"a", "é".encode()]
    assert [told.of(token) for token in (5, 6)] == [b"<0xZZ>", "▁<s>".encode()]


def test_without_a_decoder_a_token_is_its_text() -> None:
    assert TokenBytes(Tokenizer(models.WordLevel({"<0xE2>": 0}, "<0xE2>"))).of(0) == b"<0xE2>"


def test_different_bytes_are_shown_differently_and_count_characters_once() -> None:
    tokens = [bytes([byte]) for byte in range(256)]
    assert len({shown(token) for token in tokens}) == 256
    assert shown(b"\xe2\x82", "bytes:") == "bytes:\\xe2\\x82"
    assert sum(characters(bytes([byte])) for byte in TEXT.encode()) == len(TEXT)
