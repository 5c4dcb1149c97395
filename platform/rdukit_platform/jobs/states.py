"""The life of a job: states, events, reasons, and the table of what may follow what.

``submitted`` waits for its inputs, ``queued`` for tiles and a worker, ``starting`` for its box, ``retrying`` for its
next attempt's time.
"""

from enum import StrEnum
from typing import Final

from rdukit.errors import InvalidTransition


class JobState(StrEnum):
    """States of a job."""

    SUBMITTED = "submitted"
    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    RETRYING = "retrying"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


class JobEvent(StrEnum):
    """Events of a job."""

    #: All inputs are there.
    READY = "ready"
    #: An earlier step of the pipeline ended without its output.
    STRAND = "strand"
    #: The scheduler gave it an attempt.
    ADMIT = "admit"
    #: The attempt found no tiles, or never ran; it does not count.
    REQUEUE = "requeue"
    #: The box took the verb.
    START = "start"
    SUCCEED = "succeed"
    #: It failed for good.
    FAIL = "fail"
    #: The attempt failed or was lost; another one follows.
    RETRY = "retry"
    #: The wait before the next attempt is over.
    DUE = "due"
    CANCEL = "cancel"


#: Legal priorities of a job; one that names none has 0.
LOWEST_PRIORITY: Final = -100
HIGHEST_PRIORITY: Final = 100


class JobReason(StrEnum):
    """Reasons for a job's final state."""

    COMPLETED = "completed"
    BOX_FAILED = "box-failed"
    ATTEMPTS_EXHAUSTED = "attempts-exhausted"
    INPUT_LOST = "input-lost"
    #: An attempt took longer than the job's run limit.
    RUN_LIMIT_EXCEEDED = "run-limit-exceeded"
    CANCELLED_BY_USER = "cancelled-by-user"
    UPSTREAM_ENDED = "upstream-ended"
    #: Its sweep took it for hopeless.
    STOPPED_EARLY = "stopped-early"


class WaitCode(StrEnum):
    """Reasons for waiting, in the vocabulary of Slurm's squeue.

    Source: Slurm 25.05, "Job Reason Codes". Which of ours has which code is our choice.
    """

    #: Others come first, and it would take what they wait for.
    PRIORITY = "Priority"
    #: Tiles, places on the node or worker slots are taken.
    RESOURCES = "Resources"
    TENANT_LIMIT = "QOSMaxJobsPerUserLimit"
    #: The pause before its next attempt is not over.
    BEGIN_TIME = "BeginTime"
    #: An earlier step of its pipeline has not ended.
    DEPENDENCY = "Dependency"
    #: No node daemon answers.
    NODE_AWAY = "ReqNodeNotAvail"
    #: No worker is up.
    WORKERS_AWAY = "PartitionDown"
    #: It needs more than the node has in service.
    TOO_LARGE = "PartitionNodeLimit"


#: The final state that each reason belongs to.
FINAL_STATES: Final = {
    JobReason.COMPLETED: JobState.SUCCEEDED,
    JobReason.BOX_FAILED: JobState.FAILED,
    JobReason.ATTEMPTS_EXHAUSTED: JobState.FAILED,
    JobReason.INPUT_LOST: JobState.FAILED,
    JobReason.RUN_LIMIT_EXCEEDED: JobState.FAILED,
    JobReason.CANCELLED_BY_USER: JobState.CANCELLED,
    JobReason.UPSTREAM_ENDED: JobState.CANCELLED,
    JobReason.STOPPED_EARLY: JobState.CANCELLED,
}

FINAL: Final = frozenset(FINAL_STATES.values())

#: States in which an attempt exists that has not ended.
ACTIVE: Final = frozenset({JobState.STARTING, JobState.RUNNING})

TRANSITIONS: Final = {
    (JobState.SUBMITTED, JobEvent.READY): JobState.QUEUED,
    (JobState.SUBMITTED, JobEvent.STRAND): JobState.CANCELLED,
    (JobState.SUBMITTED, JobEvent.CANCEL): JobState.CANCELLED,
    (JobState.QUEUED, JobEvent.ADMIT): JobState.STARTING,
    (JobState.QUEUED, JobEvent.CANCEL): JobState.CANCELLED,
    (JobState.STARTING, JobEvent.START): JobState.RUNNING,
    (JobState.STARTING, JobEvent.REQUEUE): JobState.QUEUED,
    (JobState.STARTING, JobEvent.RETRY): JobState.RETRYING,
    (JobState.STARTING, JobEvent.FAIL): JobState.FAILED,
    (JobState.STARTING, JobEvent.CANCEL): JobState.CANCELLED,
    (JobState.RUNNING, JobEvent.SUCCEED): JobState.SUCCEEDED,
    (JobState.RUNNING, JobEvent.RETRY): JobState.RETRYING,
    (JobState.RUNNING, JobEvent.FAIL): JobState.FAILED,
    (JobState.RUNNING, JobEvent.CANCEL): JobState.CANCELLED,
    (JobState.RETRYING, JobEvent.DUE): JobState.QUEUED,
    (JobState.RETRYING, JobEvent.CANCEL): JobState.CANCELLED,
}

#: Events that end a job, and the reasons they may give.
ENDINGS: Final = {
    JobEvent.SUCCEED: frozenset({JobReason.COMPLETED}),
    JobEvent.FAIL: frozenset(
        {
            JobReason.BOX_FAILED,
            JobReason.ATTEMPTS_EXHAUSTED,
            JobReason.INPUT_LOST,
            JobReason.RUN_LIMIT_EXCEEDED,
        }
    ),
    JobEvent.CANCEL: frozenset({JobReason.CANCELLED_BY_USER, JobReason.STOPPED_EARLY}),
    JobEvent.STRAND: frozenset({JobReason.UPSTREAM_ENDED}),
}


def next_state(job_id: str, state: JobState, event: JobEvent, reason: JobReason | None = None) -> JobState:
    """Return the state after ``event``.

    Raises:
        InvalidTransition: the table has no such row, or the reason does not belong to the event.
    """
    after = TRANSITIONS.get((state, event))
    if after is None:
        legal = sorted(str(e) for s, e in TRANSITIONS if s is state)
        raise InvalidTransition(
            f"job {job_id} is {state}, where {event} cannot happen; legal: {legal or 'nothing, it has ended'}",
            state=str(state),
            event=str(event),
        )
    if (reason is None) == (after in FINAL) or (reason is not None and reason not in ENDINGS.get(event, ())):
        raise InvalidTransition(f"job {job_id}: {event} to {after} does not go with the reason {reason}")
    return after
