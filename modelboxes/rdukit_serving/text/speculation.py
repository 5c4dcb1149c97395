"""Speculative decoding: one run of the model tries guessed tokens together with the certain one. Pure.

A run of the model takes several tokens at nearly the cost of one. After a right guess, the run also gives the token
that follows; after a wrong one, its later tokens are ignored and their places in the caches are rewritten. Tokens are
always chosen from the model's own logits, so the text does not depend on guesses.
Source: Leviathan et al., Fast Inference from Transformers via Speculative Decoding (2023); Saxena, Prompt Lookup
Decoding (2023).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

#: Lengths of the text's ending, in tokens, that are searched earlier in it, the longest first.
_ENDS: Final = (4, 3, 2)
#: Weight of a new guess against earlier ones, and their decay with each run without a guess.
_NEWEST: Final = 1 / 8
_FORGOTTEN: Final = 1 / 64
#: A guess less likely to be right than this is not worth a place in a run, even a free one.
_LEAST_HOPE: Final = 0.05
#: Required gain of a draft in tokens a second: its use of the processor's caches is in
#: no figure.
_WORTH_DRAFTING: Final = 1.1


class Lookup:
    """Finds what followed the text's last tokens at their previous occurrence."""

    def __init__(self) -> None:
        self._tokens: list[int] = []
        #: Some consecutive tokens → the place after their last occurrence.
        self._places: dict[tuple[int, ...], int] = {}

    def __len__(self) -> int:
        """Return the number of the text's tokens."""
        return len(self._tokens)

    def add(self, tokens: Iterable[int]) -> None:
        """Continue the text."""
        text = self._tokens
        for token in tokens:
            for size in _ENDS:
                if size <= len(text):
                    self._places[tuple(text[-size:])] = len(text)
            text.append(token)

    def guess(self, most: int) -> list[int]:
        """Return ``most`` tokens, or none if the text's end is new. A repetition is continued."""
        text = self._tokens
        for size in _ENDS:
            place = self._places.get(tuple(text[-size:])) if size <= len(text) else None
            if place is not None:
                return [text[place + i % (len(text) - place)] for i in range(most)]
        return []


@dataclass(slots=True)
class Trust:
    """Share of the guesses from one source that were right of late; ``first`` before any was tried."""

    first: float = 0.5
    rate: float = field(init=False)

    def __post_init__(self) -> None:
        self.rate = self.first

    def note(self, guess: Sequence[int], made: Sequence[int]) -> int:
        """Record a guess and the actual tokens; return the number of right ones, up to the first wrong one."""
        known = min(len(guess), len(made))
        right = next((i for i in range(known) if guess[i] != made[i]), known)
        for _ in range(right):
            self.rate += (1 - self.rate) * _NEWEST
        if right < known:
            self.rate -= self.rate * _NEWEST
        return right

    def rest(self) -> None:
        """Forget a little: a rate may have improved since its last use."""
        self.rate += (self.first - self.rate) * _FORGOTTEN


@dataclass(frozen=True, slots=True)
class Outlook:
    """Outlook of a text's guesses: their hit rate, their number, and whether a draft model must make them first."""

    rate: float
    count: int
    is_drafted: bool = False


def share_places(
    outlooks: Sequence[Outlook], widths: Sequence[int], seconds: Mapping[int, float], draft_seconds: float = 0.0
) -> list[int]:  # fmt: skip
    """Return the number of guessed tokens of each text to try in the next run, for the most tokens a second.

    A guess counts only if all guesses before it are right. ``widths``: widths of available runs, ascending, at least
    one as wide as the number of texts. ``seconds``: time of each; ``draft_seconds``: time of a draft's run, which
    guesses a token of each text.
    """
    texts = len(outlooks)
    hopes = sorted(
        (-(outlook.rate**depth), depth, text)
        for text, outlook in enumerate(outlooks)
        for depth in range(1, outlook.count + 1)
        if outlook.rate**depth >= _LEAST_HOPE
    )
    best, plain, chosen = 0.0, 0.0, hopes[:0]
    for drafted in range(1 + max(outlook.count * outlook.is_drafted for outlook in outlooks)):
        possible = [hope for hope in hopes if hope[1] <= drafted or not outlooks[hope[2]].is_drafted]
        for width in (each for each in widths if each >= texts):
            tried = possible[: width - texts]
            value = (texts - sum(hope for hope, _, _ in tried)) / (seconds[width] + drafted * draft_seconds)
            if value > (max(best, plain * _WORTH_DRAFTING) if drafted else best):
                best, chosen = value, tried
        plain = plain if drafted else best
    counts = [0] * texts
    for _, _, text in chosen:
        counts[text] += 1
    return counts
