"""Lateness of ranks at collectives: a table of one rank's view. Pure. Source: ours."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(slots=True)
class RankLateness:
    """Lateness of one rank: number of collectives at which it came last, and total seconds after the first."""

    rank: int
    last: int = 0
    late_s: float = 0.0


class Stragglers:
    """Lateness of a group's ranks since the last ``clear``; ``numbers``: the launch's numbers of the ranks."""

    def __init__(self, numbers: Sequence[int]) -> None:
        self._numbers = numbers
        self.clear()

    def clear(self) -> None:
        """Begin anew."""
        self._rows = [RankLateness(number) for number in self._numbers]

    def note(self, arrivals_ns: Sequence[int]) -> None:
        """Count a collective with the ranks' times of arrival, by rank, on one clock."""
        first, last = min(arrivals_ns), max(arrivals_ns)
        for row, arrival in zip(self._rows, arrivals_ns, strict=True):
            row.late_s += (arrival - first) / 1e9
        if last > first:
            self._rows[arrivals_ns.index(last)].last += 1

    def table(self) -> list[dict[str, Any]]:
        """Return a row for each rank as plain values, the latest first."""
        return [asdict(row) for row in sorted(self._rows, key=lambda row: -row.late_s)]
