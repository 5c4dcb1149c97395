"""Table of experts in the host's memory, and of waiting ones (pure); ``pool.py`` executes its decisions.

The least recently used experts are evicted, except pinned ones and those with running sequences. If only experts with
running sequences could make room, they accept no new sequences until they are evicted; otherwise busy experts would
starve the others. Waiting experts are served in order.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum


class ExpertState(StrEnum):
    """States of an expert. Source: the states of models at ALCF's inference endpoints."""

    LIVE = "Live"
    STARTING = "Starting"
    QUEUED = "Queued"
    OFFLINE = "Offline"


@dataclass(frozen=True, slots=True)
class LoadExpert:
    """Decision: bring an expert's weights into memory."""

    name: str


@dataclass(frozen=True, slots=True)
class EvictExpert:
    """Decision: let an expert's weights go."""

    name: str


Decision = LoadExpert | EvictExpert


@dataclass(slots=True)
class _Entry:
    size: int
    is_pinned: bool
    state: ExpertState = ExpertState.OFFLINE
    #: Its weights are in memory: while it starts, is live, and until it is known to be gone.
    is_held: bool = False
    #: It accepts no further text, and is unloaded when it has none.
    is_leaving: bool = False
    texts: int = 0
    used: int = 0


class ExpertTable:
    """Experts of a bundle in a budget of bytes."""

    def __init__(self, budget: int, experts: Mapping[str, tuple[int, bool]]) -> None:
        """``experts``: bytes of each, and whether it is pinned. Each fits together with all pinned ones."""
        self._budget = budget
        self._entries = {name: _Entry(size, is_pinned) for name, (size, is_pinned) in experts.items()}
        #: Names in the state Queued, in the order in which they are loaded.
        self._queue: list[str] = []
        self._clock = 0

    def state(self, name: str) -> ExpertState:
        """Return an expert's state."""
        return self._entries[name].state

    def texts(self, name: str) -> int:
        """Return how many texts an expert has."""
        return self._entries[name].texts

    @property
    def held_bytes(self) -> int:
        """Return the bytes that are in memory, or reserved there."""
        return sum(entry.size for entry in self._entries.values() if entry.is_held)

    def may_begin(self, name: str) -> bool:
        """Return whether a text may begin now."""
        entry = self._entries[name]
        return entry.state is ExpertState.LIVE and not entry.is_leaving

    def want(self, name: str) -> None:
        """Queue an expert's load, unless it is live, starting or queued; a leaving expert returns afterwards."""
        entry = self._entries[name]
        is_out = entry.state is ExpertState.OFFLINE or (entry.state is ExpertState.LIVE and entry.is_leaving)
        if is_out and name not in self._queue:
            self._queue.append(name)
            if entry.state is ExpertState.OFFLINE:
                entry.state = ExpertState.QUEUED

    def forget(self, name: str) -> None:
        """Cancel a load without waiting texts, unless it has begun.

        An expert that still has texts after its process died, or that is pinned, is loaded anyway.
        """
        if not (self._entries[name].texts or self._entries[name].is_pinned):
            self._leave_queue(name)

    def begin(self, name: str) -> None:
        """Count a text that begins; ``may_begin`` allowed it."""
        self._clock += 1
        self._entries[name].texts += 1
        self._entries[name].used = self._clock

    def end(self, name: str) -> None:
        """Count a text that ended."""
        self._clock += 1
        self._entries[name].texts -= 1
        self._entries[name].used = self._clock

    def leave(self, name: str) -> None:
        """Unload an expert, even a pinned one, once it is loaded and has no texts; a queued load is cancelled."""
        entry = self._entries[name]
        if entry.state is ExpertState.QUEUED and not entry.texts:
            self._leave_queue(name)
        elif entry.state is not ExpertState.OFFLINE:
            entry.is_leaving = True

    def loaded(self, name: str) -> None:
        """Record a successful load."""
        self._clock += 1
        entry = self._entries[name]
        entry.state, entry.used = ExpertState.LIVE, self._clock

    def gone(self, name: str) -> None:
        """Record that an expert's weights are no longer in memory: evicted, not loaded, or lost with their process."""
        entry = self._entries[name]
        entry.is_held = entry.is_leaving = False
        entry.state = ExpertState.QUEUED if name in self._queue else ExpertState.OFFLINE

    def decide(self) -> list[Decision]:
        """Return the next actions and count them as begun: evictions end with ``gone``, loads with ``loaded``."""
        decided: list[Decision] = []
        entries = self._entries
        for name in [name for name, entry in entries.items() if entry.is_leaving and self._is_idle(entry)]:
            decided.append(self._evict(name))
        while self._queue:
            name = self._queue[0]
            entry = entries[name]
            if entry.state is not ExpertState.QUEUED or entry.is_held:  # it is still leaving
                break
            missing = entry.size - (self._budget - self.held_bytes)
            if missing <= 0:
                del self._queue[0]
                entry.state, entry.is_held = ExpertState.STARTING, True
                decided.append(LoadExpert(name))
                continue
            missing -= sum(each.size for each in entries.values() if each.is_held and self._is_going(each))
            for victim in self._victims(missing, idle=True):
                decided.append(self._evict(victim))
                missing -= entries[victim].size
            for victim in self._victims(missing, idle=False):
                entries[victim].is_leaving = True
            break
        return decided

    def validate(self) -> None:
        """Check what always holds.

        Raises:
            AssertionError: a total differs.
        """
        assert self.held_bytes <= self._budget
        assert len(set(self._queue)) == len(self._queue)
        for name, entry in self._entries.items():
            assert entry.texts >= 0
            assert entry.is_held or entry.state in {ExpertState.QUEUED, ExpertState.OFFLINE}
            assert entry.state is not ExpertState.QUEUED or name in self._queue

    def _leave_queue(self, name: str) -> None:
        if name in self._queue:
            self._queue.remove(name)
            if self._entries[name].state is ExpertState.QUEUED:
                self._entries[name].state = ExpertState.OFFLINE

    def _evict(self, name: str) -> EvictExpert:
        entry = self._entries[name]
        entry.is_leaving = False
        entry.state = ExpertState.QUEUED if name in self._queue else ExpertState.OFFLINE
        return EvictExpert(name)

    @staticmethod
    def _is_idle(entry: _Entry) -> bool:
        return entry.state is ExpertState.LIVE and entry.texts == 0

    @staticmethod
    def _is_going(entry: _Entry) -> bool:
        """Return whether memory will be free without a further decision."""
        return entry.is_leaving or entry.state in {ExpertState.OFFLINE, ExpertState.QUEUED}

    def _victims(self, missing: int, idle: bool) -> Iterable[str]:
        """Return the experts to evict for ``missing`` bytes, the least recently used first."""
        found: list[str] = []
        able = [
            (entry.used, name)
            for name, entry in self._entries.items()
            if entry.state is ExpertState.LIVE and not (entry.is_pinned or entry.is_leaving)
            and (entry.texts == 0) is idle
        ]  # fmt: skip
        for _, name in sorted(able):
            if missing <= 0:
                break
            found.append(name)
            missing -= self._entries[name].size
        return found
