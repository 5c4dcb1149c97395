"""Guesses of a text's next tokens, which one run of the model tries together with the token that is certain. Pure.

A run of the model takes several tokens at nearly the cost of one. Where a guess is right, the run gives the token after
it, too; where it is wrong, what follows it is not looked at and its place in the caches is written again. A token is
always chosen from the model's own logits, so that the text is the same with guesses and without.
Source: Leviathan et al., Fast Inference from Transformers via Speculative Decoding (2023); Saxena, Prompt Lookup
Decoding (2023).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

#: Lengths in tokens of what a text ends with that is looked for further ahead in it, the longest first.
_ENDS: Final = (4, 3, 2)
#: Share of guesses taken to be right before any was tried, and what each new one counts beside those before.
_FIRST_RATE: Final = 0.5
_NEWEST: Final = 1 / 8
#: A guess less likely to be right than this is not worth its place in a run, even one that is free.
_LEAST_HOPE: Final = 0.05


class Lookup:
    """Finds what followed in a text when it last had the tokens with which it ends now."""

    def __init__(self) -> None:
        self._tokens: list[int] = []
        #: Some tokens in a row → where what followed them last begins.
        self._places: dict[tuple[int, ...], int] = {}

    def add(self, tokens: Iterable[int]) -> None:
        """Continue the text."""
        text = self._tokens
        for token in tokens:
            for size in _ENDS:
                if size <= len(text):
                    self._places[tuple(text[-size:])] = len(text)
            text.append(token)

    def guess(self, most: int) -> list[int]:
        """Return ``most`` tokens, or none where the text's end is new. What repeats itself goes on doing so."""
        text = self._tokens
        for size in _ENDS:
            place = self._places.get(tuple(text[-size:])) if size <= len(text) else None
            if place is not None:
                return [text[place + i % (len(text) - place)] for i in range(most)]
        return []


@dataclass(slots=True)
class Trust:
    """Share of the guesses from one source that were right of late."""

    rate: float = _FIRST_RATE

    def note(self, right: int, ends_wrong: bool) -> None:
        """Note so many guesses that were right, and perhaps one after them that was not."""
        for _ in range(right):
            self.rate += (1 - self.rate) * _NEWEST
        if ends_wrong:
            self.rate -= self.rate * _NEWEST


def count_right(guess: Sequence[int], made: Sequence[int]) -> int:
    """Return how many tokens of a guess were made, up to the first that was not."""
    return next((i for i, (a, b) in enumerate(zip(guess, made, strict=False)) if a != b), min(len(guess), len(made)))


def share_places(
    guesses: Sequence[tuple[float, int]], widths: Sequence[int], seconds: Mapping[int, float]
) -> list[int]:  # fmt: skip
    """Return how many guessed tokens of each text to try in the next run, for the most tokens a second.

    Each text of the run has the rate at which guesses for it are right, and how many tokens are guessed; a token is
    right only if those before it are. ``widths`` are those of the runs that there are, the narrowest first, at least
    one as wide as there are texts; ``seconds`` what each takes.
    """
    texts = len(guesses)
    hopes = sorted(
        ((-(rate**depth), depth, text) for text, (rate, count) in enumerate(guesses) for depth in range(1, count + 1)
         if rate**depth >= _LEAST_HOPE)
    )  # fmt: skip
    best, chosen = 0.0, hopes[:0]
    for width in (each for each in widths if each >= texts):
        tried = hopes[: width - texts]
        value = (texts - sum(hope for hope, _, _ in tried)) / seconds[width]
        if value > best:
            best, chosen = value, tried
    counts = [0] * texts
    for _, _, text in chosen:
        counts[text] += 1
    return counts
