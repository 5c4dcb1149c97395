"""The bytes that a token stands for, and how they are shown: a character may be cut between two tokens. Pure."""

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from rdukit_modelbox.preprocessing.byte_letters import byte_letters

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_BYTE_OF: Final[Mapping[str, int]] = {letter: byte for byte, letter in enumerate(byte_letters())}


class TokenBytes:
    """Tells the bytes of a tokenizer's tokens."""

    def __init__(self, tokenizer: "Tokenizer") -> None:
        self._tokenizer = tokenizer
        steps = {step["type"]: step for step in _steps(json.loads(tokenizer.to_str())["decoder"])}
        self._is_byte_level = "ByteLevel" in steps
        self._has_byte_tokens = "ByteFallback" in steps
        #: What stands for a space.
        self._space: str = steps.get("Metaspace", {}).get("replacement", "")
        replaced = steps.get("Replace", {})
        if replaced.get("content") == " ":
            self._space = replaced["pattern"].get("String", "")
        #: Tokens that are text as they stand, special ones among them.
        self._added = {token: str(added) for token, added in tokenizer.get_added_tokens_decoder().items()}

    def of(self, token: int) -> bytes:
        """Its bytes; of a token that the tokenizer lacks, none."""
        text = self._tokenizer.id_to_token(token)
        if text is None:
            return b""
        if token not in self._added:
            if self._is_byte_level and all(letter in _BYTE_OF for letter in text):
                return bytes(_BYTE_OF[letter] for letter in text)
            if self._has_byte_tokens and len(text) == 6 and text.startswith("<0x") and text.endswith(">"):
                return bytes.fromhex(text[3:5])
            if self._space:
                text = text.replace(self._space, " ")
        return text.encode()


def shown(token: bytes, prefix: str = "") -> str:
    """A token as text; bytes that are no text as escapes, behind ``prefix``.

    Source: OpenAI's API writes ``\\xe2\\x80`` in chats and ``bytes:\\xe2\\x80`` in completions.
    """
    try:
        return token.decode()
    except UnicodeDecodeError:
        return prefix + "".join(f"\\x{byte:02x}" for byte in token)


def characters(token: bytes) -> int:
    """How many characters begin in it."""
    return sum(byte & 0xC0 != 0x80 for byte in token)


def _steps(decoder: Mapping[str, Any] | None) -> Iterator[Mapping[str, Any]]:
    """The steps of a decoder as ``tokenizer.json`` has them."""
    if decoder is None:
        return
    if decoder["type"] == "Sequence":
        for step in decoder["decoders"]:
            yield from _steps(step)
    else:
        yield decoder
