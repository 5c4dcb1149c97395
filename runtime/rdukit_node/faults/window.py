"""Counting over a sliding window in bounded memory and constant time."""

from collections import deque
from collections.abc import Sequence
from typing import Final

#: Occurrences closer together than this part of the window are counted as one entry, at the first one's time.
_GRAINS: Final = 1000
#: Entries of ``coarse`` at most.
_COARSE: Final = 32


class Window:
    """Occurrences of the last ``span_ns`` nanoseconds; each is forgotten up to a thousandth of the span early."""

    __slots__ = ("_entries", "_grain_ns", "_span_ns", "total")

    def __init__(self, span_ns: int, entries: Sequence[tuple[int, int]] = ()) -> None:
        self._span_ns = span_ns
        self._grain_ns = span_ns // _GRAINS
        #: (time, number) by rising time, further apart than the grain.
        self._entries: deque[list[int]] = deque([time, number] for time, number in entries)
        #: Sum of the numbers.
        self.total = sum(number for _, number in entries)

    def add(self, number: int, now_ns: int) -> int:
        """Count ``number`` more occurrences and return how many the window has. A clock that goes back stands still."""
        entries = self._entries
        if entries:
            last = entries[-1]
            now_ns = max(now_ns, last[0])
            oldest = now_ns - self._span_ns
            while entries and entries[0][0] <= oldest:
                self.total -= entries.popleft()[1]
            if entries and now_ns - last[0] < self._grain_ns:
                last[1] += number
            else:
                entries.append([now_ns, number])
        else:
            entries.append([now_ns, number])
        self.total += number
        return self.total

    def coarse(self) -> tuple[tuple[int, int], ...]:
        """The window in a few entries, for the database: neighbours are added up at the earliest's time."""
        entries = list(self._entries)
        step = -(-len(entries) // _COARSE) or 1
        return tuple(
            (entries[start][0], sum(number for _, number in entries[start : start + step]))
            for start in range(0, len(entries), step)
        )
