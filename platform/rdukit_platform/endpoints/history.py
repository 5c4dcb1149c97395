"""Latency and load of endpoints over the last two hours, in the memory of one gateway.

Each endpoint has a row per minute, with a histogram of latencies, so its size does not depend on the load. The
figures are in memory only: each gateway has its own, and a restart clears them. Source: ours.
"""

import math
import threading
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

#: Seconds per row, and number of rows that are kept.
MINUTE_S: Final = 60.0
MINUTES: Final = 120
#: Largest number of endpoints; the least recently called one is dropped.
MAX_ENDPOINTS: Final = 500
#: Ratio of the bounds of a bin: a percentile is within 5 % of the true one.
_RATIO: Final = 1.1
#: Latencies in seconds at the ends of the histogram; others count as these.
_LEAST_S: Final = 1e-4
_MOST_S: Final = 1e4


@dataclass(slots=True)
class Minute:
    """Calls of one minute. ``number`` counts minutes since the epoch."""

    number: int
    calls: int = 0
    #: Calls that failed: answers of 500 and above, and missing answers.
    failures: int = 0
    #: Seconds that calls took in this minute, added up over calls.
    busy_s: float = 0.0
    #: Number of calls in each bin of latency.
    bins: Counter[int] = field(default_factory=Counter)

    @property
    def in_progress(self) -> float:
        """Mean number of calls in progress."""
        return self.busy_s / MINUTE_S


class CallHistory:
    """Rows of all endpoints that were called. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: Rows by endpoint and minute. The endpoint that was called last is the last one.
        self._rows: dict[str, dict[int, Minute]] = {}

    def record(self, endpoint_id: str, began: float, ended: float, *, failed: bool) -> None:
        """Count a call whose answer began, or that failed, at ``ended``; times in seconds since the epoch."""
        with self._lock:
            row = self._row(endpoint_id, int(ended // MINUTE_S))
            row.calls += 1
            row.failures += failed
            if not failed:
                row.bins[bin_of(ended - began)] += 1
            self._add(endpoint_id, began, ended)

    def occupy(self, endpoint_id: str, began: float, ended: float) -> None:
        """Count the time in which an answer that had begun was sent."""
        with self._lock:
            self._add(endpoint_id, began, ended)

    def read(self, endpoint_id: str, now: float) -> list[Minute]:
        """Return copies of the rows since the first call of the last two hours, oldest first, with empty minutes."""
        last = int(now // MINUTE_S)
        with self._lock:
            known = {number: row for number, row in self._rows.get(endpoint_id, {}).items() if number > last - MINUTES}
            if not known:
                return []
            numbers = range(min(known), max(last, *known) + 1)
            return [_copy(known.get(number) or Minute(number)) for number in numbers]

    def _add(self, endpoint_id: str, began: float, ended: float) -> None:
        first, last = int(began // MINUTE_S), int(ended // MINUTE_S)
        for number in range(max(first, last - MINUTES + 1), last + 1):
            left, right = max(began, number * MINUTE_S), min(ended, (number + 1) * MINUTE_S)
            self._row(endpoint_id, number).busy_s += max(0.0, right - left)

    def _row(self, endpoint_id: str, number: int) -> Minute:
        rows = self._rows.pop(endpoint_id, {})
        self._rows[endpoint_id] = rows
        if len(self._rows) > MAX_ENDPOINTS:
            del self._rows[next(iter(self._rows))]
        found = rows.get(number)
        if found is None:
            found = rows[number] = Minute(number)
            for old in [each for each in rows if each <= max(rows) - MINUTES]:
                del rows[old]
        return found


def bin_of(seconds: float) -> int:
    """Return the bin of a latency (pure)."""
    return math.floor(math.log(min(max(seconds, _LEAST_S), _MOST_S) / _LEAST_S, _RATIO))


def percentile(bins: Iterable[tuple[int, int]], part: float) -> float | None:
    """Return the latency in seconds that ``part`` of the calls do not exceed, within 5 % (pure); ``None``: no calls.

    Args:
        bins: numbers of bins, each with its number of calls.
        part: above 0, at most 1; 0.5 is the median.
    """
    ordered = sorted(bins)
    rest = math.ceil(part * sum(count for _, count in ordered))
    for each, count in ordered:
        rest -= count
        if rest <= 0 < count:
            return _LEAST_S * math.pow(_RATIO, each + 0.5)
    return None


def _copy(row: Minute) -> Minute:
    return Minute(row.number, row.calls, row.failures, row.busy_s, Counter(row.bins))
