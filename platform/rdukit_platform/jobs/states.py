"""The life of a job: states, events, reasons, and the table of transitions.

``submitted`` waits for inputs, ``queued`` for tiles and a worker, ``starting`` for its box, ``retrying`` for the time
of its next attempt, ``paused`` for a user who resumes it.
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
    PAUSED = "paused"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


class JobEvent(StrEnum):
    """Events of a job."""

    #: All inputs are there.
    READY = "ready"
    #: All inputs are there, and another job has already made its outputs from the same inputs.
    REUSE = "reuse"
    #: An earlier step of the pipeline ended without its output.
    STRAND = "strand"
    #: The scheduler created an attempt.
    ADMIT = "admit"
    #: The attempt found no tiles, or never ran; it does not count.
    REQUEUE = "requeue"
    #: The box took the verb.
    START = "start"
    SUCCEED = "succeed"
    #: It failed, and no attempt follows.
    FAIL = "fail"
    #: The attempt failed or was lost; another one follows.
    RETRY = "retry"
    #: The wait before the next attempt is over.
    DUE = "due"
    #: The scheduler took its tiles for a job that precedes it.
    PREEMPT = "preempt"
    CANCEL = "cancel"
    #: A user holds it; an attempt that it had has released its tiles.
    PAUSE = "pause"
    #: A user resumes it; its inputs are there.
    RESUME = "resume"
    #: A user resumes it, and earlier steps of its pipeline have not ended.
    AWAIT = "await"
    #: Its deadline has passed, or precedes the end of its run limit.
    EXPIRE = "expire"


#: Valid priorities of a job; the default is 0.
LOWEST_PRIORITY: Final = -100
HIGHEST_PRIORITY: Final = 100
#: Largest number of members of a job.
MAX_MEMBERS: Final = 64
#: Longest run limit: a year.
MAX_RUN_LIMIT_S: Final = 365 * 86400.0


class JobReason(StrEnum):
    """Reasons for a job's final state."""

    COMPLETED = "completed"
    #: An earlier job of the tenant has made the same; this one has its outputs and did not run.
    CACHED = "cached"
    BOX_FAILED = "box-failed"
    ATTEMPTS_EXHAUSTED = "attempts-exhausted"
    INPUT_LOST = "input-lost"
    #: An attempt took longer than the job's run limit.
    RUN_LIMIT_EXCEEDED = "run-limit-exceeded"
    #: It missed its deadline, or could no longer meet it.
    DEADLINE_EXCEEDED = "deadline-exceeded"
    #: An attempt ended in a way that its retry policy does not name.
    NOT_RETRIED = "not-retried"
    CANCELLED_BY_USER = "cancelled-by-user"
    UPSTREAM_ENDED = "upstream-ended"
    #: Its sweep judged it hopeless.
    STOPPED_EARLY = "stopped-early"


class WaitCode(StrEnum):
    """Reasons for waiting, in the vocabulary of Slurm's squeue.

    Source: Slurm 25.05, "Job Reason Codes". The mapping of our reasons to its codes is ours.
    """

    #: Other jobs precede it, and it would use resources that they wait for.
    PRIORITY = "Priority"
    #: Tiles, places on the node or worker slots are taken.
    RESOURCES = "Resources"
    TENANT_LIMIT = "QOSMaxJobsPerUserLimit"
    #: Its tenant has reached its own limit of jobs.
    TENANT_JOBS = "AssocGrpJobsLimit"
    #: Its tenant's jobs have reached the limit of tiles.
    TENANT_TILES = "AssocGrpGRES"
    #: The pause before its next attempt is not over.
    BEGIN_TIME = "BeginTime"
    #: An earlier step of its pipeline has not ended.
    DEPENDENCY = "Dependency"
    #: A user has paused it.
    HELD = "JobHeldUser"
    #: No node daemon answers, or maintenance is planned before it would have ended.
    NODE_AWAY = "ReqNodeNotAvail"
    #: No worker is up.
    WORKERS_AWAY = "PartitionDown"
    #: No node has its required labels.
    BAD_CONSTRAINTS = "BadConstraints"
    #: It needs more than the node has in service.
    TOO_LARGE = "PartitionNodeLimit"


#: The final state that each reason belongs to.
FINAL_STATES: Final = {
    JobReason.COMPLETED: JobState.SUCCEEDED,
    JobReason.CACHED: JobState.SUCCEEDED,
    JobReason.BOX_FAILED: JobState.FAILED,
    JobReason.ATTEMPTS_EXHAUSTED: JobState.FAILED,
    JobReason.INPUT_LOST: JobState.FAILED,
    JobReason.RUN_LIMIT_EXCEEDED: JobState.FAILED,
    JobReason.DEADLINE_EXCEEDED: JobState.FAILED,
    JobReason.NOT_RETRIED: JobState.FAILED,
    JobReason.CANCELLED_BY_USER: JobState.CANCELLED,
    JobReason.UPSTREAM_ENDED: JobState.CANCELLED,
    JobReason.STOPPED_EARLY: JobState.CANCELLED,
}

#: Advice for each reason; ``{job}`` is the job's id.
ADVICE: Final = {
    JobReason.COMPLETED: "Fetch its outputs: rdukit job show {job}, then rdukit artifact get ARTIFACT.",
    JobReason.CACHED: (
        "It reuses the outputs of an identical earlier job; rdukit job show {job} names that job. To run it anyway: "
        "rdukit job clone {job}, or submit the pipeline with --no-cache"
    ),
    JobReason.BOX_FAILED: (
        "The error has the expected values, and the log has more: rdukit job logs {job}. Then submit it with valid "
        "values: rdukit job clone {job} --set NAME=VALUE"
    ),
    JobReason.ATTEMPTS_EXHAUSTED: (
        "See how each attempt ended: rdukit job show {job}. After you remove the cause, submit it again: "
        "rdukit job clone {job}"
    ),
    JobReason.INPUT_LOST: (
        "The error names the input. Create or upload it again, then: rdukit job clone {job} --input SLOT=ARTIFACT"
    ),
    JobReason.RUN_LIMIT_EXCEEDED: (
        "Give it more time or less work: rdukit job clone {job} --run-limit TIME, or --set NAME=VALUE"
    ),
    JobReason.DEADLINE_EXCEEDED: (
        "If you still need it, submit it with a later deadline: rdukit job clone {job} --deadline TIME. A higher "
        "priority or a shorter run limit lets it start earlier."
    ),
    JobReason.NOT_RETRIED: (
        "Its attempt ended with {outcome}, which its retry policy does not name. To retry on it: rdukit job clone "
        "{job} --retry-on {outcome}; repeat --retry-on for further causes."
    ),
    JobReason.CANCELLED_BY_USER: "If you still need it, submit it again: rdukit job clone {job}",
    JobReason.UPSTREAM_ENDED: (
        "Its error names the step and the missing input (rdukit job show {job}). Correct that, and submit the pipeline "
        "again."
    ),
    JobReason.STOPPED_EARLY: (
        "Its sweep stopped it as hopeless; its error has the numbers. To let it finish anyway: rdukit job clone {job}"
    ),
}

FINAL: Final = frozenset(FINAL_STATES.values())

#: States in which the job has an open attempt.
ACTIVE: Final = frozenset({JobState.STARTING, JobState.RUNNING})

#: States in which a job waits without a user's action.
WAITING: Final = frozenset({JobState.SUBMITTED, JobState.QUEUED, JobState.RETRYING})

TRANSITIONS: Final = {
    (JobState.SUBMITTED, JobEvent.READY): JobState.QUEUED,
    (JobState.SUBMITTED, JobEvent.REUSE): JobState.SUCCEEDED,
    (JobState.SUBMITTED, JobEvent.STRAND): JobState.CANCELLED,
    (JobState.SUBMITTED, JobEvent.CANCEL): JobState.CANCELLED,
    (JobState.QUEUED, JobEvent.ADMIT): JobState.STARTING,
    (JobState.QUEUED, JobEvent.CANCEL): JobState.CANCELLED,
    (JobState.STARTING, JobEvent.START): JobState.RUNNING,
    (JobState.STARTING, JobEvent.REQUEUE): JobState.QUEUED,
    (JobState.STARTING, JobEvent.PREEMPT): JobState.QUEUED,
    (JobState.STARTING, JobEvent.RETRY): JobState.RETRYING,
    (JobState.STARTING, JobEvent.FAIL): JobState.FAILED,
    (JobState.STARTING, JobEvent.CANCEL): JobState.CANCELLED,
    (JobState.RUNNING, JobEvent.SUCCEED): JobState.SUCCEEDED,
    (JobState.RUNNING, JobEvent.PREEMPT): JobState.QUEUED,
    (JobState.RUNNING, JobEvent.RETRY): JobState.RETRYING,
    (JobState.RUNNING, JobEvent.FAIL): JobState.FAILED,
    (JobState.RUNNING, JobEvent.CANCEL): JobState.CANCELLED,
    (JobState.RETRYING, JobEvent.DUE): JobState.QUEUED,
    (JobState.RETRYING, JobEvent.CANCEL): JobState.CANCELLED,
    (JobState.PAUSED, JobEvent.RESUME): JobState.QUEUED,
    (JobState.PAUSED, JobEvent.AWAIT): JobState.SUBMITTED,
    (JobState.PAUSED, JobEvent.CANCEL): JobState.CANCELLED,
    **{(state, JobEvent.PAUSE): JobState.PAUSED for state in (*WAITING, *ACTIVE)},
    **{(state, JobEvent.EXPIRE): JobState.FAILED for state in (*WAITING, *ACTIVE, JobState.PAUSED)},
}

#: Events that end a job, and the reasons they may give.
ENDINGS: Final = {
    JobEvent.SUCCEED: frozenset({JobReason.COMPLETED}),
    JobEvent.REUSE: frozenset({JobReason.CACHED}),
    JobEvent.FAIL: frozenset(
        {
            JobReason.BOX_FAILED,
            JobReason.ATTEMPTS_EXHAUSTED,
            JobReason.INPUT_LOST,
            JobReason.RUN_LIMIT_EXCEEDED,
            JobReason.NOT_RETRIED,
        }
    ),
    JobEvent.EXPIRE: frozenset({JobReason.DEADLINE_EXCEEDED}),
    JobEvent.CANCEL: frozenset({JobReason.CANCELLED_BY_USER, JobReason.STOPPED_EARLY}),
    JobEvent.STRAND: frozenset({JobReason.UPSTREAM_ENDED}),
}


def next_state(job_id: str, state: JobState, event: JobEvent, reason: JobReason | None = None) -> JobState:
    """Return the state after ``event``.

    Raises:
        InvalidTransition: the event cannot happen in this state, or cannot have this reason.
    """
    after = TRANSITIONS.get((state, event))
    if after is None:
        legal = ", ".join(sorted(e for s, e in TRANSITIONS if s is state))
        raise InvalidTransition(
            f"job {job_id} is {state}, where {event} cannot happen; expected {legal or 'nothing, it has ended'}",
            state=str(state),
            event=str(event),
        )
    if (reason is None) == (after in FINAL) or (reason is not None and reason not in ENDINGS.get(event, ())):
        raise InvalidTransition(f"job {job_id}: {event} to {after} cannot have the reason {reason}")
    return after


def advise(reason: str, job_id: str, outcome: str | None = None) -> str:
    """Return advice about a job that ended for ``reason``; empty for a reason that this version does not know.

    Args:
        outcome: how its last attempt ended, if that is known.
    """
    if reason not in set(JobReason):
        return ""
    return ADVICE[JobReason(reason)].format(job=job_id, outcome=outcome or "OUTCOME")
