"""Watches of the scheduler (pure): who has been silent for too long, and how long it is since something began.

Both count by the scheduler's own steady clock. The wall clocks of two machines are never compared, and one that is set
ends nothing.
"""

from collections.abc import Mapping
from typing import Final

#: Of the longest silence, what one pause between two looks counts for at most.
_PART: Final = 4


class SilenceWatch:
    """Notes, look by look, how long each of those has been silent who should give signs of life.

    Who looks and stood still itself, on a host that is overloaded or was suspended, has not heard what there was to
    hear: a pause between two looks counts for a quarter of ``lost_s`` at most.
    """

    def __init__(self, lost_s: float) -> None:
        self._lost_s = lost_s
        self._looked_at: float | None = None
        #: Of each: its sign at the last look, and the seconds that it has not changed since.
        self._silences: dict[str, tuple[float, float]] = {}

    def look(self, signs: Mapping[str, float], at: float) -> frozenset[str]:
        """Note the sign of each at ``at``, steady seconds; a living one's changes. Returns those that are lost."""
        before = at if self._looked_at is None else self._looked_at
        passed = min(max(at - before, 0.0), self._lost_s / _PART)
        self._looked_at = at
        silences = {}
        for name, sign in signs.items():
            known, silent_s = self._silences.get(name, (sign, 0.0))
            silences[name] = (sign, silent_s + passed if known == sign else 0.0)
        self._silences = silences
        return frozenset(name for name, (_, silent_s) in silences.items() if silent_s >= self._lost_s)


class AgeWatch:
    """Notes when things began, at the first look by the wall clock, and from then on by the steady one."""

    def __init__(self) -> None:
        #: Of each: when it began by the wall clock, and by the steady one.
        self._began: dict[str, tuple[float, float]] = {}

    def look(self, began: Mapping[str, float], at: float, now: float) -> dict[str, float]:
        """Return the age of each in seconds; ``at`` is steady, ``now`` the wall clock."""
        known = self._began
        self._began = {
            name: known[name]
            if name in known and known[name][0] == began_at
            else (began_at, at - max(now - began_at, 0))
            for name, began_at in began.items()
        }
        return {name: at - steady for name, (_, steady) in self._began.items()}
