"""Judge the end of an attempt for its job (pure): success, failure, or another attempt, counted or not."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from rdukit.errors import HwException, all_error_classes
from rdukit_platform.jobs.states import JobEvent, JobReason


class AttemptOutcome(StrEnum):
    """End of an attempt."""

    SUCCEEDED = "succeeded"
    #: The box refused or failed the verb; the error's code says whether trying again can help.
    BOX_FAILED = "box-failed"
    #: The box ended or did not start, and gave no answer.
    BOX_LOST = "box-lost"
    #: The box, or the process of its verb, was killed from outside.
    BOX_KILLED = "box-killed"
    #: The box ran, but was not ready in time or did not answer.
    BOX_SLOW = "box-slow"
    #: The node failed: its daemon did not answer or ended the lease, or hardware broke.
    NODE_FAILED = "node-failed"
    #: The node's disk was full when the box wrote to it.
    DISK_FULL = "disk-full"
    #: The worker's lease ran out.
    EXPIRED = "expired"
    INPUT_LOST = "input-lost"
    CANCELLED = "cancelled"
    #: It took longer than the job's run limit.
    RUN_LIMIT_EXCEEDED = "run-limit-exceeded"
    #: The job's deadline passed before the attempt had ended.
    DEADLINE_EXCEEDED = "deadline-exceeded"
    #: A user paused the job.
    PAUSED = "paused"
    #: The scheduler took its tiles for a job that goes before it.
    PREEMPTED = "preempted"
    #: The lease of tiles was refused (the message says what would fit), or the container service does not answer.
    NO_RESOURCES = "no-resources"
    #: An earlier attempt still uses the job's folder.
    FOLDER_BUSY = "folder-busy"
    #: An administrator withdrew its tiles.
    WITHDRAWN = "withdrawn"
    #: The worker was asked to stop.
    INTERRUPTED = "interrupted"


#: Error codes of a box after which another attempt may succeed. All others are faults of the request.
RETRYABLE_CODES: Final = frozenset(
    {
        "internal",
        "unavailable",
        "no-resources",
        "runtime-error",
        "peer-lost",
        "cancelled",
        "conflict",
    }
)

#: Error codes by which a box reports a failure of its node.
NODE_CODES: Final = frozenset({"lease-lost", "lease-withdrawn"}) | {
    code for code, error in all_error_classes().items() if issubclass(error, HwException)
}

#: Outcomes that do not count against ``max_attempts``, because the job caused none of them.
FREE: Final = frozenset(
    {
        AttemptOutcome.NO_RESOURCES,
        AttemptOutcome.FOLDER_BUSY,
        AttemptOutcome.INTERRUPTED,
        AttemptOutcome.WITHDRAWN,
        AttemptOutcome.PREEMPTED,
    }
)

#: Outcomes that the platform or its host causes. They have a count of their own; at its limit the job fails.
LOST: Final = frozenset(
    {
        AttemptOutcome.EXPIRED,
        AttemptOutcome.BOX_KILLED,
        AttemptOutcome.BOX_SLOW,
        AttemptOutcome.DISK_FULL,
        AttemptOutcome.NODE_FAILED,
    }
)

#: Pause before the next admission after an outcome that is free.
FREE_PAUSE_S: Final = 1.0
#: Longest pause after an attempt that was lost.
LOST_PAUSE_S: Final = 10.0

MAX_BACKOFF_S: Final = 60.0

#: Outcomes that a retry policy may name. It may also name the code of any error that a box reports.
RETRIED: Final = frozenset({AttemptOutcome.BOX_FAILED, AttemptOutcome.BOX_LOST}) | LOST
RETRY_CAUSES: Final = frozenset(map(str, RETRIED)) | frozenset(all_error_classes())


@dataclass(frozen=True, slots=True)
class RetryRule:
    """Rule that decides whether a job is retried.

    Without ``on``, every temporary failure is retried. With it, only those outcomes and error codes are retried;
    ``box-failed`` there means the errors of ``RETRYABLE_CODES``.
    """

    #: Pause after the first failure; doubles with each further one, up to ``max_backoff_s``.
    backoff_s: float
    max_backoff_s: float = MAX_BACKOFF_S
    on: frozenset[str] | None = None


def read_rule(policy: Mapping[str, object] | None, backoff_s: float) -> RetryRule:
    """Return the rule of a policy from a job's row; defaults replace missing keys."""
    found = policy or {}
    first, longest, on = found.get("backoff_s"), found.get("max_backoff_s"), found.get("on")
    return RetryRule(
        backoff_s if not isinstance(first, int | float) else float(first),
        MAX_BACKOFF_S if not isinstance(longest, int | float) else float(longest),
        frozenset(map(str, on)) if isinstance(on, list) else None,
    )


def is_due(not_before: float | None, policy: Mapping[str, object] | None, now: float) -> bool:
    """Return whether the pause before a job's next attempt is over.

    A pause longer than the policy allows began before the clock was set back, so it counts as over.
    """
    longest = max(read_rule(policy, 0.0).max_backoff_s, MAX_BACKOFF_S)
    return not_before is None or not now < not_before <= now + longest


@dataclass(frozen=True, slots=True)
class AttemptVerdict:
    """Consequence for the job."""

    event: JobEvent
    reason: JobReason | None
    #: Counted failures and lost attempts, this attempt included.
    failures: int
    losses: int
    #: Seconds until the next attempt may be admitted; 0 in a final state.
    pause_s: float


def judge(
    outcome: AttemptOutcome, error_code: str | None, *, is_running: bool, failures: int, max_attempts: int, losses: int,
    max_losses: int, rule: RetryRule, is_pausing: bool = False, is_preempted: bool = False,
) -> AttemptVerdict:  # fmt: skip
    """Judge the consequence of an attempt's end for its job.

    Args:
        is_running: whether the box had accepted the verb.
        failures: counted failures before this attempt.
        losses: attempts that were lost before this one; the job fails at ``max_losses``.
        is_pausing: a user has requested a pause; the job is paused instead of retried.
        is_preempted: the scheduler has requested its tiles; if interrupted, the job is queued at once.
    """
    found = _judge(outcome, error_code, is_running, failures, max_attempts, losses, max_losses, rule)
    if is_pausing and found.event in {JobEvent.RETRY, JobEvent.REQUEUE}:
        return replace(found, event=JobEvent.PAUSE)
    if is_preempted and outcome is AttemptOutcome.INTERRUPTED:
        return replace(found, event=JobEvent.PREEMPT)
    return found


def _judge(
    outcome: AttemptOutcome, error_code: str | None, is_running: bool, failures: int, max_attempts: int, losses: int,
    max_losses: int, rule: RetryRule,
) -> AttemptVerdict:  # fmt: skip
    if outcome is AttemptOutcome.SUCCEEDED:
        return AttemptVerdict(JobEvent.SUCCEED, JobReason.COMPLETED, failures, losses, 0.0)
    if outcome is AttemptOutcome.CANCELLED:
        return AttemptVerdict(JobEvent.CANCEL, JobReason.CANCELLED_BY_USER, failures, losses, 0.0)
    if outcome is AttemptOutcome.INPUT_LOST:
        return AttemptVerdict(JobEvent.FAIL, JobReason.INPUT_LOST, failures + 1, losses, 0.0)
    if outcome is AttemptOutcome.RUN_LIMIT_EXCEEDED:
        return AttemptVerdict(JobEvent.FAIL, JobReason.RUN_LIMIT_EXCEEDED, failures + 1, losses, 0.0)
    if outcome is AttemptOutcome.DEADLINE_EXCEEDED:
        return AttemptVerdict(JobEvent.EXPIRE, JobReason.DEADLINE_EXCEEDED, failures + 1, losses, 0.0)
    if outcome is AttemptOutcome.PAUSED:
        return AttemptVerdict(JobEvent.PAUSE, None, failures, losses, 0.0)
    if outcome in FREE:
        pause = 0.0 if outcome in {AttemptOutcome.INTERRUPTED, AttemptOutcome.PREEMPTED} else FREE_PAUSE_S
        return AttemptVerdict(JobEvent.RETRY if is_running else JobEvent.REQUEUE, None, failures, losses, pause)
    if outcome in LOST:
        losses += 1
        if losses >= max_losses:
            return AttemptVerdict(JobEvent.FAIL, JobReason.ATTEMPTS_EXHAUSTED, failures, losses, 0.0)
        if not _is_named(rule, outcome, error_code):
            return AttemptVerdict(JobEvent.FAIL, JobReason.NOT_RETRIED, failures, losses, 0.0)
        pause = min(rule.backoff_s * 2 ** (losses - 1), max(rule.backoff_s, LOST_PAUSE_S), rule.max_backoff_s)
        return AttemptVerdict(JobEvent.RETRY, None, failures, losses, pause)
    is_wanted = rule.on is not None and error_code in rule.on
    if outcome is AttemptOutcome.BOX_FAILED and error_code not in RETRYABLE_CODES and not is_wanted:
        return AttemptVerdict(JobEvent.FAIL, JobReason.BOX_FAILED, failures + 1, losses, 0.0)
    failures += 1
    if not _is_named(rule, outcome, error_code):
        return AttemptVerdict(JobEvent.FAIL, JobReason.NOT_RETRIED, failures, losses, 0.0)
    if failures >= max_attempts:
        return AttemptVerdict(JobEvent.FAIL, JobReason.ATTEMPTS_EXHAUSTED, failures, losses, 0.0)
    pause = min(rule.backoff_s * 2 ** (failures - 1), rule.max_backoff_s)
    return AttemptVerdict(JobEvent.RETRY, None, failures, losses, pause)


def _is_named(rule: RetryRule, outcome: AttemptOutcome, error_code: str | None) -> bool:
    return rule.on is None or str(outcome) in rule.on or error_code in rule.on
