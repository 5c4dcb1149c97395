"""Rows of a language model's caches: which text has which, what they hold, and what the device does next. Pure.

A text that ends leaves its tokens in its row until another one needs it, so that a text that begins alike need not be
read again: a further turn of a chat, or the same instructions before another question. With as few rows as there are,
the longest common beginning is found by comparing.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

#: Tokens that take longer to read again than a row to copy.
WORTH_COPYING: Final = 16
#: Runs of an expert while others have texts, too: so long do these wait for their next token.
TURN_RUNS: Final = 8


@dataclass(slots=True)
class Row:
    """A row, the tokens that its text has in the caches, by which weights, and when it was used last."""

    number: int
    tokens: list[int] = field(default_factory=list)
    used: int = 0
    is_taken: bool = False
    weights: str = ""


@dataclass(frozen=True, slots=True)
class Place:
    """A row for a new text, of which ``kept`` tokens are there already once the row ``source`` is copied to it; None:
    nothing is to be copied.
    """

    row: Row
    kept: int
    source: int | None


class RowTable:
    """The rows of one model."""

    def __init__(self, count: int) -> None:
        self._rows = [Row(number) for number in range(count)]
        self._clock = 0

    @property
    def has_free(self) -> bool:
        """Return whether another text finds a row."""
        return any(not row.is_taken for row in self._rows)

    def take(self, prompt: Sequence[int], may_keep: bool = True, weights: str = "") -> Place:
        """Take a row for a text that begins with ``prompt``; its last token is always read again, for what follows it.

        The row is the free one that was used least recently, but for one whose tokens the prompt only continues. The
        row with the longest common beginning, taken or not, is the source. What other ``weights`` made is of no use.
        """
        free = [row for row in self._rows if not row.is_taken]
        kept, source = 0, None
        if may_keep:
            usable = {row.number: row.tokens if row.weights == weights else () for row in self._rows}
            common = {number: common_length(tokens, prompt[:-1]) for number, tokens in usable.items()}
            source = max(self._rows, key=lambda row: (common[row.number], not row.is_taken, -row.used))
            kept = common[source.number]
        row = min(free, key=lambda row: (len(row.tokens) > 0, row.used))
        if source is not None and not source.is_taken and kept == len(source.tokens) > 0:
            row = source
        is_copied = source is not None and source is not row
        if is_copied and kept < WORTH_COPYING:
            kept, is_copied = 0, False
        self._clock += 1
        row.is_taken, row.used, row.tokens, row.weights = True, self._clock, list(prompt[:kept]), weights
        return Place(row, kept, source.number if source is not None and is_copied else None)

    def release(self, row: Row) -> None:
        """Free a row; its tokens stay until another text takes it."""
        self._clock += 1
        row.is_taken, row.used = False, self._clock


def common_length(some: Sequence[int], others: Sequence[int]) -> int:
    """Return how many tokens two texts have in common at their beginnings."""
    most = min(len(some), len(others))
    if list(some[:most]) == list(others[:most]):
        return most
    return next(place for place in range(most) if some[place] != others[place])


def reads_next(is_reading: Iterable[bool], has_read: bool) -> bool:
    """Return whether the device reads a part of a prompt next, rather than to make a token of each other text.

    ``is_reading`` says of each text whether its prompt is still read; ``has_read`` whether that was done last. So the
    texts that are made wait for one part of a prompt at most, and a prompt for one token.
    """
    reading = list(is_reading)
    return any(reading) and (all(reading) or not has_read)


def part_length(lengths: Sequence[int], seconds: Mapping[int, float], step_s: float | None) -> int:
    """Return how many tokens of a prompt to read at most in the next run.

    ``lengths``: what a run can read, the fewest first; ``seconds``: how long a run of each took; ``step_s``: how long
    the texts that are made wait for a token anyway, None if there are none. A part delays them by as much again, if
    the shortest can be read so fast.
    """
    if step_s is None:
        return lengths[-1]
    return max((length for length in lengths if seconds.get(length, 0) <= step_s), default=lengths[0])


def choose_turn(experts: Sequence[str], current: str, runs: int) -> str:
    """Return whose texts the next run is for.

    ``experts``: of each text, the oldest first; ``runs``: how many ``current`` has had in its turn. After ``TURN_RUNS``
    it is the turn of the expert that comes next in the order of the oldest texts, round and round.
    """
    order = list(dict.fromkeys(experts))
    if current not in order:
        return order[0]
    if runs < TURN_RUNS:
        return current
    return order[(order.index(current) + 1) % len(order)]
