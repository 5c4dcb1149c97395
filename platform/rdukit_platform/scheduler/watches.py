"""Watches of the scheduler (pure): holders that are silent for too long, and times since a begin.

Both use the scheduler's own monotonic clock. Wall clocks of two machines are never compared, and setting one ends no
job.
"""

from collections.abc import Mapping
from typing import Final

#: A pause between two checks counts at most the longest silence divided by this.
_PART: Final = 4


class SilenceWatch:
    """Records at each check how long each watched holder has been silent.

    A watcher that was frozen itself, on an overloaded or suspended host, has missed heartbeats. So a pause between two
    checks counts at most a quarter of ``lost_s``.
    """

    def __init__(self, lost_s: float) -> None:
        self._lost_s = lost_s
        self._looked_at: float | None = None
        #: Each holder's sign at the last check, and the seconds for which it has not changed.
        self._silences: dict[str, tuple[float, float]] = {}

    def look(self, signs: Mapping[str, float], at: float) -> frozenset[str]:
        """Record the holders' signs at ``at``, in monotonic seconds. A live holder's changes. Returns the lost ones."""
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
    """Records when things began: by the wall clock at the first look, then by the monotonic clock."""

    def __init__(self) -> None:
        #: Begin of each, by the wall clock and by the monotonic clock.
        self._began: dict[str, tuple[float, float]] = {}

    def look(self, began: Mapping[str, float], at: float, now: float) -> dict[str, float]:
        """Return the age of each in seconds; ``at`` is monotonic, ``now`` the wall clock."""
        known = self._began
        self._began = {
            name: known[name]
            if name in known and known[name][0] == began_at
            else (began_at, at - max(now - began_at, 0))
            for name, began_at in began.items()
        }
        return {name: at - steady for name, (_, steady) in self._began.items()}
