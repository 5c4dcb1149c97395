"""Watch over nodes that beat: which have been silent for too long, by the watcher's own steady clock (pure)."""

from collections.abc import Mapping
from typing import Final

#: Of the longest silence, what one pause between two looks counts for at most.
_PART: Final = 4


class NodeWatch:
    """Notes, look by look, how long each node has been silent.

    Clocks of different machines are not compared. Who looks and stood still itself, on a host that is overloaded or
    was suspended, has not heard what there was to hear: a pause between two looks counts for a quarter of ``lost_s``
    at most.
    """

    def __init__(self, lost_s: float) -> None:
        self._lost_s = lost_s
        self._looked_at: float | None = None
        #: Of each node: how often it had beaten at the last look, and the seconds that it has not since.
        self._silences: dict[str, tuple[int, float]] = {}

    def look(self, beats: Mapping[str, int], at: float) -> frozenset[str]:
        """Note how often each node has beaten at ``at``, steady seconds. Returns those that are lost."""
        before = at if self._looked_at is None else self._looked_at
        passed = min(max(at - before, 0.0), self._lost_s / _PART)
        self._looked_at = at
        silences = {}
        for name, count in beats.items():
            known, silent_s = self._silences.get(name, (count, 0.0))
            silences[name] = (count, silent_s + passed if known == count else 0.0)
        self._silences = silences
        return frozenset(name for name, (_, silent_s) in silences.items() if silent_s >= self._lost_s)
