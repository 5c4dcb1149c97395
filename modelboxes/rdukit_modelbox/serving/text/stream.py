"""Tokens → pieces of text that may be shown: no half characters, nothing of a stop sequence. Pure."""

from collections.abc import Callable, Sequence
from typing import Final

#: What a decoder writes for bytes that are no character, or not yet one.
REPLACEMENT: Final = "\ufffd"
#: Tokens that are decoded again with each new one, at least: decoders look at a token's neighbours.
NEIGHBOURS: Final = 8


class TextStream:
    """The text of one generation, piece by piece.

    ``decode`` gives the text of tokens, as a tokenizer does. ``stops`` are texts that end the generation; they are
    never shown, in whole or in part.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], stops: Sequence[str] = ()) -> None:
        self._decode = decode
        self._stops = tuple(stop for stop in stops if stop)
        #: The newest tokens, and how many characters of their text were taken into ``_pending`` or shown.
        self._tokens: list[int] = []
        self._taken = 0
        #: Text that is whole but may be the beginning of a stop sequence.
        self._pending = ""
        #: The stop sequence that was found; None until then.
        self.stopped_by: str | None = None

    def push(self, token: int) -> str:
        """Take the next token; returns what may be shown now, often nothing. Nothing after a stop was found."""
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
        """What is left when no token follows: the beginning of a stop sequence is text now, half characters go."""
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
    """(place, stop) of the stop sequence that begins first, the longest of those; None if there is none."""
    found = [(place, -len(stop), stop) for stop in stops if (place := text.find(stop)) >= 0]
    if not found:
        return None
    place, _, stop = min(found)
    return place, stop


def length_of_beginning(text: str, stops: Sequence[str]) -> int:
    """Characters at the end of ``text`` that some stop sequence begins with."""
    longest = min(len(text), max((len(stop) - 1 for stop in stops), default=0))
    return next(
        (size for size in range(longest, 0, -1) if any(stop.startswith(text[-size:]) for stop in stops)), 0
    )  # fmt: skip
