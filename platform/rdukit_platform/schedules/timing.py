"""Due times of a schedule, and the decision about each run (pure).

Cron expressions are cronsim's: the five fields of cron as Debian has them. A time that a zone skips in spring is due at
the corresponding instant. A time that occurs twice in autumn is due once, unless the hour is a star.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from rdukit.errors import IllegalValue

#: Largest number of waiting runs of a schedule.
MAX_WAITING: Final = 8
_FIELDS: Final = 5


class Missed(StrEnum):
    """Rule for due times that passed while the platform was down."""

    SKIP = "skip"
    LATEST = "latest"


class Overlap(StrEnum):
    """Rule for a due time at which the previous run is still open."""

    SKIP = "skip"
    QUEUE = "queue"


class RunState(StrEnum):
    """State of the run of a due time."""

    #: Its pipeline was submitted.
    STARTED = "started"
    #: The previous run must end first.
    WAITING = "waiting"
    SKIPPED = "skipped"
    MISSED = "missed"
    #: Its pipeline was refused.
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Due:
    """Due times that have passed: the latest, and whether there were earlier ones since the last look."""

    latest: float
    has_earlier: bool
    #: Next due time; ``None``: never.
    next_at: float | None


def check_cron(cron: str, zone: str) -> None:
    """Refuse an invalid expression or zone.

    Raises:
        IllegalValue: the expression is not valid; the message has the expected form.
    """
    legal = 'five fields, minute hour day month weekday, such as "0 3 * * MON-FRI"'
    if len(cron.split()) != _FIELDS:
        raise IllegalValue(
            f"cron is {cron[:80]!r}, which has {len(cron.split())} fields; expected {legal}", legal=legal
        )
    read_zone(zone)
    try:
        CronSim(cron, datetime.now(UTC))
    except CronSimError as cause:
        raise IllegalValue(f"cron is {cron[:80]!r}: {str(cause).lower()}; expected {legal}", legal=legal) from cause
    if find_next(cron, zone, 0.0) is None:
        raise IllegalValue(f"cron is {cron[:80]!r}, which matches no day; correct its day and month", legal=legal)


def read_zone(zone: str) -> ZoneInfo:
    """Return the time zone of a name.

    Raises:
        IllegalValue: there is no such zone.
    """
    try:
        return ZoneInfo(zone)
    except (OSError, ValueError, KeyError) as cause:
        legal = "UTC, or a name of the IANA's such as Europe/Berlin"
        raise IllegalValue(f"unknown time zone {zone[:80]!r}; expected {legal}", legal=legal) from cause


def find_next(cron: str, zone: str, after: float) -> float | None:
    """Return the first due time after a time; ``None``: never."""
    return _step(CronSim(cron, datetime.fromtimestamp(after, read_zone(zone))))


def find_due(cron: str, zone: str, next_at: float, now: float) -> Due | None:
    """Return the due times from ``next_at`` until now; empty or ``None`` means there are none."""
    if next_at > now:
        return None
    # Searched backwards, because years of minutes may have passed; from a second later, because the search is
    # exclusive.
    latest = _step(CronSim(cron, datetime.fromtimestamp(now + 1.0, read_zone(zone)), reverse=True))
    latest = next_at if latest is None or not next_at <= latest <= now else latest
    return Due(latest, latest > next_at, find_next(cron, zone, now))


def decide_run(
    late_s: float, max_s: float, missed: Missed, overlap: Overlap, before: str | None, waiting: int
) -> tuple[RunState, str | None]:
    """Decide about the run of a due time. Returns its state, and the reason if it is not started.

    Args:
        late_s: seconds since it was due.
        max_s: seconds that it may be late without being missed.
        before: open pipeline of an earlier run.
        waiting: number of waiting earlier runs.
    """
    if late_s > max_s and missed is Missed.SKIP:
        return RunState.MISSED, f"it was due {late_s:.0f} s before a scheduler was up"
    if before is None and not waiting:
        return RunState.STARTED, None
    said = f"pipeline {before} of the previous run has not ended" if before else f"{waiting} runs before it wait"
    if overlap is Overlap.SKIP:
        return RunState.SKIPPED, said
    if waiting >= MAX_WAITING:
        return RunState.SKIPPED, f"{waiting} runs already wait, which is the limit"
    return RunState.WAITING, said


def explain_cron(cron: str) -> str:
    """Return an expression in words: ``At 03:00 on Monday through Friday``."""
    return CronSim(cron, datetime.fromtimestamp(0.0, UTC)).explain()


def local_time(at: float, zone: str) -> str:
    """Return a time in a zone, with its distance from UTC: ``2026-11-30 03:00 +01:00``."""
    return datetime.fromtimestamp(at, read_zone(zone)).isoformat(" ", "minutes").replace("+", " +")


def _step(times: CronSim) -> float | None:
    found = next(times, None)
    return None if found is None else found.timestamp()
