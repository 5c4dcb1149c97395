"""Bytes and text of tokens: their bytes, their display, and decoding piece by piece. Pure."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from tokenizers import Tokenizer


def byte_letters() -> list[str]:
    """Return the letter of each byte, as GPT-2 chose them: printable bytes stand for themselves."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = {byte: chr(byte) for byte in printable} | {byte: chr(256 + index) for index, byte in enumerate(others)}
    return [letters[byte] for byte in range(256)]


_BYTE_OF: Final[Mapping[str, int]] = {letter: byte for byte, letter in enumerate(byte_letters())}


#: A token that is a byte, of tokenizers that fall back to bytes.
_BYTE_TOKEN: Final = re.compile(r"<0x[0-9A-Fa-f]{2}>")


class TokenBytes:
    """Bytes of a tokenizer's tokens."""

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
        #: Tokens that are plain text, including special ones.
        self._added = {token: str(added) for token, added in tokenizer.get_added_tokens_decoder().items()}

    @property
    def has_all_bytes(self) -> bool:
        """Return whether every byte of a text is in a token of it."""
        return self._is_byte_level or self._has_byte_tokens

    def of(self, token: int) -> bytes:
        """Return a token's bytes; empty for a token that the tokenizer lacks."""
        text = self._tokenizer.id_to_token(token)
        if text is None:
            return b""
        if token not in self._added:
            if self._is_byte_level and all(letter in _BYTE_OF for letter in text):
                return bytes(_BYTE_OF[letter] for letter in text)
            if self._has_byte_tokens and _BYTE_TOKEN.fullmatch(text):
                return bytes.fromhex(text[3:5])
            if self._space:
                text = text.replace(self._space, " ")
        return text.encode()


def shown(token: bytes, prefix: str = "") -> str:
    """Return a token as text; bytes that are not text become escapes after ``prefix``.

    Source: OpenAI's API writes ``\\xe2\\x80`` in chats and ``bytes:\\xe2\\x80`` in completions.
    """
    try:
        return token.decode()
    except UnicodeDecodeError:
        return prefix + "".join(f"\\x{byte:02x}" for byte in token)


def characters(token: bytes) -> int:
    """Return the number of characters that begin in a token."""
    return sum(byte & 0xC0 != 0x80 for byte in token)


def _steps(decoder: Mapping[str, Any] | None) -> Iterator[Mapping[str, Any]]:
    """Return the steps of a decoder as ``tokenizer.json`` has them."""
    if decoder is None:
        return
    if decoder["type"] == "Sequence":
        for step in decoder["decoders"]:
            yield from _steps(step)
    else:
        yield decoder


#: A decoder's replacement for bytes that are no character, or not yet one.
REPLACEMENT: Final = "\ufffd"
#: Least number of earlier tokens that are decoded again with each new one: decoders look at neighbours.
NEIGHBOURS: Final = 8


class TextStream:
    """Text of one generation, piece by piece.

    ``decode`` returns the text of tokens, as a tokenizer does. ``stops`` are texts that end the generation; no part of
    them is shown.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], stops: Sequence[str] = ()) -> None:
        self._decode = decode
        self._stops = tuple(stop for stop in stops if stop)
        #: The newest tokens, and the number of their characters that were moved into ``_pending`` or shown.
        self._tokens: list[int] = []
        self._taken = 0
        #: Complete text that may be the beginning of a stop sequence.
        self._pending = ""
        #: The found stop sequence; None: not found yet.
        self.stopped_by: str | None = None

    def push(self, token: int) -> str:
        """Read the next token; return the text that may be shown now, often none. After a stop, nothing is returned."""
        if self.stopped_by is not None:
            return ""
        self._tokens.append(token)
        text = self._decode(self._tokens)
        # A character's first bytes give one replacement character at the end, which may still become another one.
        whole = text[:-1] if text.endswith(REPLACEMENT) else text
        self._pending += whole[self._taken :]
        self._taken = max(self._taken, len(whole))
        if len(self._tokens) >= 4 * NEIGHBOURS and len(whole) == len(text):
            self._tokens = self._tokens[-NEIGHBOURS:]
            self._taken = len(self._decode(self._tokens))
        return self._release()

    def finish(self) -> str:
        """Return the rest: the beginning of a stop sequence becomes text, and incomplete characters are dropped."""
        left, self._pending = self._pending, ""
        return left if self.stopped_by is None else ""

    def _release(self) -> str:
        found = find_stop(self._pending, self._stops)
        if found is not None:
            place, self.stopped_by = found
            shown, self._pending = self._pending[:place], ""
            return shown
        kept = length_of_beginning(self._pending, self._stops)
        cut = len(self._pending) - kept
        shown, self._pending = self._pending[:cut], self._pending[cut:]
        return shown


def find_stop(text: str, stops: Sequence[str]) -> tuple[int, str] | None:
    """Return (place, stop) of the first stop sequence in the text, the longest at equal places; None: there is none."""
    found = [(place, -len(stop), stop) for stop in stops if (place := text.find(stop)) >= 0]
    if not found:
        return None
    place, _, stop = min(found)
    return place, stop


def length_of_beginning(text: str, stops: Sequence[str]) -> int:
    """Return the number of characters at the end of ``text`` that begin some stop sequence."""
    longest = 0
    for stop in stops:
        sizes = range(min(len(text), len(stop) - 1), longest, -1)
        longest = next((size for size in sizes if stop.startswith(text[-size:])), longest)
    return longest
