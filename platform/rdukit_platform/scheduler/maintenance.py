"""Jobs that cannot start because of planned maintenance (pure). There is one rule per decision."""

from dataclasses import dataclass, field, replace

from rdukit_platform.jobs.states import WaitCode
from rdukit_platform.scheduler.ledger import Ledger
from rdukit_platform.scheduler.model import Need, QueuedJob, Wait
from rdukit_platform.scheduler.node_room import NodeRoom


@dataclass(slots=True)
class MaintenanceRule:
    """Finds the wait reason of jobs that would still run when maintenance begins."""

    ledger: Ledger
    now: float
    #: By size: the end from which on maintenance prevents a start, and the wait reason.
    _known: dict[Need, tuple[float, Wait]] = field(default_factory=dict)

    def find_wait(self, job: QueuedJob, until: float) -> Wait | None:
        """Return the wait of a job that maintenance keeps from free tiles, or from all tiles; ``None``: maintenance
        does not affect it.
        """
        known = self._known.get(job.need)
        if known is not None and until >= known[0]:
            return known[1]
        now, able = self.now, self.ledger.could_have(job.need)
        is_kept = all(room.count_open(now, until) < job.tiles for room in able)
        if not able or not (is_kept or self.ledger.rooms.find(job.need) is not None):
            return None
        shut = [room for room in able if room.closed(now, until)]
        begins = min(at for room in shut for at, end, _ in room.windows if end is None or end > now)
        how = "has no run limit" if job.run_limit_s is None else f"may run for {job.run_limit_s:g} s"
        when = "is under way" if begins <= now else f"begins in {_coarse(begins - now)}"
        if not is_kept:
            wait = Wait(WaitCode.RESOURCES, f"the free tiles are reserved for maintenance, which {when}; it {how}")
            self._known[job.need] = until, wait
            return wait
        over = min(_reopens(room, now, until) for room in shut)
        wait = Wait(WaitCode.NODE_AWAY, f"Reserved for maintenance, which {when}; it {how}")
        # Only the first job gets a start time: it may take everything that is free then.
        self._known[job.need] = until, wait
        return wait if over == float("inf") else replace(wait, starts_at=over)


def _reopens(room: NodeRoom, now: float, until: float) -> float:
    """Return the end of the node's maintenance that begins before a time; infinite: the end is unknown."""
    ends = [end for at, end, _ in room.windows if at < until and (end is None or end > now)]
    return max(float("inf") if end is None else end for end in ends)


def _coarse(seconds: float) -> str:
    """Return a coarse duration as text, so that stored wait reasons seldom change."""
    return f"{seconds / 3600:.0f} h" if seconds >= 7200 else f"{-(-seconds // 60):.0f} min"
