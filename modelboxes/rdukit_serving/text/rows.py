"""Rows of a language model's caches: their texts and contents, and the device's next step. Pure.

An ended text's tokens stay in its row until another text needs it. So a text with the same beginning is not read again:
a further turn of a chat, or the same instructions before another question. There are few rows, so the longest common
beginning is found by comparing.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

#: Tokens that take longer to read again than a row to copy.
WORTH_COPYING: Final = 16
#: Runs of an expert while others have texts; the others' next tokens wait for so many runs.
TURN_RUNS: Final = 8


@dataclass(slots=True)
class Row:
    """A row, its text's tokens in the caches, their weights, and the time of its last use."""

    number: int
    tokens: list[int] = field(default_factory=list)
    used: int = 0
    is_taken: bool = False
    weights: str = ""


@dataclass(frozen=True, slots=True)
class Place:
    """A row for a new text. ``kept`` of its tokens are there once the row ``source`` is copied to it; None: no copy is
    needed.
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
        """Return whether a row is free for another text."""
        return any(not row.is_taken for row in self._rows)

    def take(self, prompt: Sequence[int], may_keep: bool = True, weights: str = "") -> Place:
        """Take a row for a text that begins with ``prompt``; its last token is always read again, for the logits after
        it.

        The row is the least recently used free one, unless the prompt continues the tokens of another free row. The row
        with the longest common beginning, taken or not, is the source. Tokens of other ``weights`` are useless.
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
    """Return the length of the common beginning of two texts, in tokens."""
    most = min(len(some), len(others))
    if list(some[:most]) == list(others[:most]):
        return most
    return next(place for place in range(most) if some[place] != others[place])


def reads_next(is_reading: Iterable[bool], has_read: bool) -> bool:
    """Return whether the device next reads a part of a prompt, rather than generating a token of each other text.

    ``is_reading``: for each text, whether its prompt is still read; ``has_read``: whether the last run read one. So
    running texts wait for at most one part of a prompt, and a prompt for at most one token.
    """
    reading = list(is_reading)
    return any(reading) and (all(reading) or not has_read)


def part_length(lengths: Sequence[int], seconds: Mapping[int, float], step_s: float | None) -> int:
    """Return the largest number of a prompt's tokens to read in the next run.

    A part delays running texts by at most one usual wait for a token, unless even the shortest part takes longer.

    Args:
        lengths: numbers of tokens that a run can read, ascending. seconds: time of a run by its length.
        step_s: usual wait of running texts for a token; None: no text is running.
    """
    if step_s is None:
        return lengths[-1]
    return max((length for length in lengths if seconds.get(length, 0) <= step_s), default=lengths[0])


def choose_turn(experts: Sequence[str], current: str, runs: int) -> str:
    """Return the expert whose texts the next run serves.

    ``experts``: expert of each text, the oldest first; ``runs``: number of runs in the turn of ``current``. After
    ``TURN_RUNS`` the turn passes to the next expert, in the cyclic order of the oldest texts.
    """
    order = list(dict.fromkeys(experts))
    if current not in order:
        return order[0]
    if runs < TURN_RUNS:
        return current
    return order[(order.index(current) + 1) % len(order)]
