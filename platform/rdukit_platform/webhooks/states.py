"""Deliveries of webhooks (pure): states, events, pauses between attempts, and the limit of failures."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from rdukit.units import format_seconds


class DeliveryState(StrEnum):
    """States of a delivery."""

    PENDING = "pending"
    DELIVERED = "delivered"
    #: Given up: sent again only on request.
    DEAD = "dead"


#: States of a job that webhooks can report, as ``job.STATE``.
TOLD_STATES: Final = ("running", "retrying", "paused", "succeeded", "failed", "cancelled")
EVENTS: Final = tuple(f"job.{state}" for state in TOLD_STATES)
#: Default events of a webhook: ends of jobs.
USUAL_EVENTS: Final = ("job.succeeded", "job.failed", "job.cancelled")
#: Event that ``rdukit webhook test`` sends.
TEST_EVENT: Final = "webhook.test"

FIRST_PAUSE_S: Final = 5.0
LONGEST_PAUSE_S: Final = 4 * 3600.0


def pause_s(attempts: int, chance: float) -> float:
    """Return the pause in seconds after failed attempts: it triples each time, with jitter of up to a fifth by
    ``chance``.

    Args:
        chance: from 0 to 1, drawn by the caller: a recovering receiver is then not called by all at once.
    """
    return min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 3.0 ** min(attempts - 1, 16)) * (0.8 + 0.4 * chance)


@dataclass(frozen=True, slots=True)
class FailureLimit:
    """Failures after which a webhook is disabled."""

    #: Number of successive failed attempts; 0: no limit.
    tries: int
    #: Shortest time in seconds from the first to the last try.
    lasting_s: float

    def is_passed(self, failures: int, failing_since: float, now: float) -> bool:
        """Return whether a webhook with these failures must be disabled."""
        return 0 < self.tries <= failures and now - failing_since >= self.lasting_s


def why_disabled(failures: int, failing_s: float, last: str) -> str:
    """Return the reason of disabling a webhook for its failures."""
    return (
        f"its last {failures} attempts failed, over {format_seconds(round(failing_s))}; the last one: "
        f"{last or 'no answer'}"
    )
