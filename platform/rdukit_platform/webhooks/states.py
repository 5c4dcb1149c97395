"""States of a delivery, the events that webhooks may name, when a message is tried again, a webhook no more (pure)."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from rdukit.units import format_seconds


class DeliveryState(StrEnum):
    """States of a delivery."""

    PENDING = "pending"
    DELIVERED = "delivered"
    #: Given up: it is tried no more unless somebody asks.
    DEAD = "dead"


#: States of a job that webhooks are told of, as ``job.STATE``.
TOLD_STATES: Final = ("running", "retrying", "paused", "succeeded", "failed", "cancelled")
EVENTS: Final = tuple(f"job.{state}" for state in TOLD_STATES)
#: Those of a webhook that names none: a job's ends.
USUAL_EVENTS: Final = ("job.succeeded", "job.failed", "job.cancelled")
#: What ``rdukit webhook test`` sends.
TEST_EVENT: Final = "webhook.test"

FIRST_PAUSE_S: Final = 5.0
LONGEST_PAUSE_S: Final = 4 * 3600.0


def pause_s(attempts: int, chance: float) -> float:
    """Return the pause after so many failed tries: it triples, and is up to a fifth shorter or longer by ``chance``.

    Args:
        chance: from 0 to 1, drawn by the caller: receivers that were away are not called by all at once.
    """
    return min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 3.0 ** min(attempts - 1, 16)) * (0.8 + 0.4 * chance)


@dataclass(frozen=True, slots=True)
class FailureLimit:
    """Failures after which a webhook is disabled."""

    #: Tries one after another; 0: any number.
    tries: int
    #: Seconds from the first of them to the last.
    lasting_s: float

    def is_passed(self, failures: int, failing_since: float, now: float) -> bool:
        """Return whether a webhook with so many failures since then is to be disabled."""
        return 0 < self.tries <= failures and now - failing_since >= self.lasting_s


def why_disabled(failures: int, failing_s: float, last: str) -> str:
    """Say why a webhook was disabled by its failures, the last of which is given."""
    return f"its last {failures} tries failed, over {format_seconds(round(failing_s))}; the last: {last or 'no answer'}"
