"""A tenant's operations on jobs: submit, read, pause, resume, cancel. All functions run in the caller's transaction."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from sqlalchemy import select
from sqlalchemy.orm import Session, selectinload

from rdukit.errors import Conflict, IllegalValue, InvalidArgument, InvalidTransition, NotFound
from rdukit.settings import resolve
from rdukit.telemetry.spans import begin_span, current_context, format_traceparent
from rdukit_platform.artifacts.service import get_artifact
from rdukit_platform.catalog.check import check_inputs, check_parameters
from rdukit_platform.catalog.model import BoxDescription, Boxes, BoxVerb, Selector, read_selector
from rdukit_platform.catalog.own import with_own
from rdukit_platform.db.models import AttemptRow, JobEventRow, JobLabelRow, JobRow
from rdukit_platform.db.rows import new_id
from rdukit_platform.jobs.attempts import AttemptOutcome
from rdukit_platform.jobs.caching import cache_base, cache_key
from rdukit_platform.jobs.changes import (
    JobMove,
    add_events,
    apply_event,
    apply_to_all,
    find_open_attempt,
    lock_job,
)
from rdukit_platform.jobs.promotion import end_job, promote_steps
from rdukit_platform.jobs.schemas import LABEL_KEY, CheckedJob, DeadlineChoice, JobRequest, QueueChoices, StepRequest
from rdukit_platform.jobs.states import FINAL, LOWEST_PRIORITY, JobEvent, JobReason, JobState
from rdukit_platform.settings import JOB_MAX_ATTEMPTS, JOB_MAX_PRIORITY, JOB_TILES

#: Verbs that run on the host alone and lease no tiles.
HOST_VERBS: Final = frozenset({"compile", "preprocess"})
#: Verbs that run sessions, whose time a profile shows, and the output that has it.
PROFILED_VERBS: Final = frozenset({"train", "evaluate", "infer"})
PROFILE: Final = "profile"
#: Verbs that several members can do together.
GANG_VERBS: Final = frozenset({"train"})


def submit_job(
    session: Session, boxes: Boxes, tenant_id: str, request: JobRequest, now: float, by: str | None = None
) -> JobRow:
    """Record a job that ``by`` submits (``Caller.submitter``); the scheduler then starts it.

    Raises:
        NotFound: the box, or an artifact of this tenant, does not exist.
        InvalidArgument: verb, parameters or inputs are not valid; the message has the expected values.
        Conflict: the idempotency key belongs to another request.
    """
    return _submit(session, boxes, tenant_id, [request], now, by)[0]


def submit_jobs(
    session: Session, boxes: Boxes, tenant_id: str, requests: Sequence[JobRequest], now: float, by: str | None = None
) -> list[str]:
    """Record several jobs, all or none, as ``submit_job`` does. Returns their ids, in the order of the requests.

    Raises:
        NotFound, InvalidArgument, Conflict: as ``submit_job``; ``job`` in the detail is the request's number, from 0.
    """
    return [job.id for job in _submit(session, boxes, tenant_id, requests, now, by)]


def _submit(
    session: Session, boxes: Boxes, tenant_id: str, requests: Sequence[JobRequest], now: float, by: str | None
) -> list[JobRow]:
    keys = {request.idempotency_key for request in requests} - {None}
    known = select(JobRow).where(JobRow.tenant_id == tenant_id, JobRow.idempotency_key.in_(keys))
    keyed = {job.idempotency_key: job for job in session.scalars(known)} if keys else {}
    # The box of an earlier job may no longer exist.
    boxes = with_own(session, boxes, tenant_id, [each.box for each in requests if each.idempotency_key not in keyed])
    kinds = {text: "" for request in requests for text in request.inputs.values()}
    jobs, made = list[JobRow](), list[tuple[JobRow, BoxDescription]]()
    for number, request in enumerate(requests):
        try:
            key = request.idempotency_key
            earlier = None if key is None else keyed.get(key)
            if earlier is not None:
                jobs.append(_same_request(earlier, request))
                continue
            for text in request.inputs.values():
                kinds[text] = kinds[text] or artifact_kind(session, tenant_id, text)
            box = check_request(boxes, request, {slot: kinds[text] for slot, text in request.inputs.items()})
            check_deadline(request, now)
        except (NotFound, InvalidArgument, Conflict) as refused:
            if len(requests) > 1:
                refused.detail.setdefault("job", number)
            raise
        job = new_job(tenant_id, request, box, now, key=key, by=by)
        made.append((job, box))
        jobs.append(job)
        if key is not None:
            keyed[key] = job
    if not made:
        return jobs
    add_jobs(session, [job for job, _ in made], now)
    moves = list[JobMove]()
    for job, box in made:
        base = cache_base(box, job.verb, job.parameters, job.members, profile=job.profile)
        key = cache_key(session, base, job.inputs)
        moves.append(JobMove(job, JobEvent.READY, columns={"cache_key": key}))
    apply_to_all(session, moves, now)
    return jobs


def check_job(session: Session, boxes: Boxes, tenant_id: str, request: JobRequest, now: float) -> BoxDescription:
    """Check that a request may be recorded now. Returns its box. Raises as ``submit_job``, except for the key."""
    boxes = with_own(session, boxes, tenant_id, [request.box])
    box = check_request(
        boxes, request, {slot: artifact_kind(session, tenant_id, a) for slot, a in request.inputs.items()}
    )
    check_deadline(request, now)
    return box


def foresee_job(session: Session, boxes: Boxes, tenant_id: str, request: JobRequest, now: float) -> CheckedJob:
    """Return what ``submit_job`` would record; nothing is written. Raises the same errors."""
    key = request.idempotency_key
    earlier = None if key is None else find_job_by_key(session, tenant_id, key)
    if earlier is not None:
        _same_request(earlier, request)
    box = check_job(session, boxes, tenant_id, request, now)
    return CheckedJob(
        box=str(Selector(box.name, box.version)), verb=request.verb,
        name=request.name or f"{request.box} {request.verb}",
        tiles=default_tiles(request.verb) if request.tiles is None else request.tiles,
        members=request.members,
        max_attempts=request.max_attempts or resolve(JOB_MAX_ATTEMPTS), priority=request.priority,
        deadline_at=deadline_of(request, now), job=None if earlier is None else earlier.id,
    )  # fmt: skip


def add_jobs(session: Session, jobs: Sequence[JobRow], now: float) -> None:
    """Record checked jobs in the state ``submitted``."""
    session.add_all(jobs)
    session.flush()
    session.add_all(
        JobLabelRow(job_id=job.id, key=key, value=value, tenant_id=job.tenant_id, created_at=now)
        for job in jobs
        for key, value in job.labels.items()
    )
    add_events(session, jobs, now, {"to": str(JobState.SUBMITTED), "event": "submit"})


def new_job(
    tenant_id: str,
    request: JobRequest | StepRequest,
    box: BoxDescription,
    now: float,
    *,
    key: str | None = None,
    pipeline_id: str | None = None,
    is_cached: bool = False,
    by: str | None = None,
) -> JobRow:
    """Return a new row for a checked request. ``is_cached``: it may reuse the outputs of an identical job."""
    found = chosen(request, now)
    deadline_at, run_limit_s = found["deadline_at"], request.run_limit_s
    base: str | None = None
    if is_cached:
        base = cache_base(box, request.verb, request.parameters, request.members, profile=request.profile)
    return JobRow(
        id=new_id("job"),
        tenant_id=tenant_id,
        pipeline_id=pipeline_id,
        step=request.name if isinstance(request, StepRequest) else None,
        box=box.name,
        box_version=box.version,
        verb=request.verb,
        parameters=dict(request.parameters),
        inputs=dict(request.inputs),
        references={slot: text for slot, text in request.inputs.items() if text.startswith("@")},
        cache_base=base,
        outputs={},
        traceparent=format_traceparent(current_context() or begin_span("submit").context),
        start_by=None if deadline_at is None else deadline_at - (run_limit_s or 0.0),
        state=str(JobState.SUBMITTED),
        version=0,
        attempt=0,
        failures=0,
        losses=0,
        idempotency_key=key,
        submitted_by=by,
        created_at=now,
        **found,
    )


def check_request(boxes: Boxes, request: JobRequest | StepRequest, kinds: Mapping[str, str]) -> BoxDescription:
    """Check verb, parameters, inputs and priority of a request. Returns the box that it names."""
    highest = resolve(JOB_MAX_PRIORITY)
    if request.priority > highest:
        raise IllegalValue(
            f"priority is {request.priority}; expected {LOWEST_PRIORITY} to {highest} ({JOB_MAX_PRIORITY.name})",
            field="priority",
            legal=f"{LOWEST_PRIORITY} to {highest}",
        )
    check_members(request.verb, request.members, request.tiles)
    box = boxes.box(request.box)
    verb = box.verb(request.verb)
    check_profile(verb, profile=request.profile)
    check_parameters(box, verb, request.parameters)
    check_inputs(box, verb, request.inputs, kinds)
    return box


def check_members(verb: str, members: int, tiles: int | None) -> None:
    """Refuse several members for verbs that one process does, or without tiles (pure).

    Raises:
        IllegalValue: the members are not valid; the message has the expected value.
    """
    if members > 1 and verb not in GANG_VERBS:
        raise IllegalValue(f"members is {members}, but {verb} runs in one process; expected 1", legal="1")
    if members > 1 and tiles == 0:
        raise IllegalValue(f"members is {members} and tiles is 0; expected 1 tile or more for each member", legal="1")


def check_profile(verb: BoxVerb, *, profile: bool) -> None:
    """Refuse a profile of verbs that run no session, or that have an output of this name (pure).

    Raises:
        IllegalValue: the message says what would be valid.
    """
    if not profile:
        return
    if verb.name not in PROFILED_VERBS:
        raise IllegalValue(
            f"profile is true, but {verb.name} runs no session; expected one of {', '.join(sorted(PROFILED_VERBS))}. "
            "A job's trace shows the phases of a compile: rdukit job trace JOB",
            field="profile",
            legal="false",
        )
    if any(slot.name == PROFILE for slot in verb.outputs):
        raise IllegalValue(
            f"profile is true, but {verb.name} of this box already has an output {PROFILE!r}; expected false, or "
            "a box whose output has another name",
            field="profile",
            legal="false",
        )


def check_deadline(request: DeadlineChoice, now: float) -> None:
    """Refuse a deadline that has passed, or that precedes the end of the run limit (pure).

    Raises:
        IllegalValue: the message says what would be valid.
    """
    by = deadline_of(request, now)
    limit_s: float | None = getattr(request, "run_limit_s", None)
    if by is not None and by <= now:
        raise IllegalValue("deadline has passed; expected a future time")
    if by is not None and limit_s is not None and by - now < limit_s:
        raise IllegalValue(
            f"deadline is in {by - now:.0f} s, before the run limit of {limit_s:.0f} s; expected a run limit of "
            f"{by - now:.0f} s at most, or a later deadline"
        )


def deadline_of(request: DeadlineChoice, submitted_at: float) -> float | None:
    """Return the deadline of a request submitted at that time, in seconds since 1970; ``None``: it has none (pure)."""
    if request.deadline is not None:
        return request.deadline.timestamp()
    return None if request.deadline_s is None else submitted_at + request.deadline_s


def default_tiles(verb: str) -> int:
    """Return the default number of a job's tiles."""
    return 0 if verb in HOST_VERBS else resolve(JOB_TILES)


def artifact_kind(session: Session, tenant_id: str, artifact_id: str) -> str:
    """Return whether a tenant's artifact is a ``file`` or a ``folder``; it cannot be deleted during the transaction.

    Raises:
        NotFound: the tenant has no such artifact.
        InvalidArgument: the text refers to a step, which only pipelines have.
    """
    if artifact_id.startswith("@"):
        raise InvalidArgument(
            f"input {artifact_id!r} refers to a step, but only pipelines have steps; give an artifact id"
        )
    return "folder" if get_artifact(session, tenant_id, artifact_id, is_kept=True).is_folder else "file"


def get_job(session: Session, tenant_id: str, job_id: str, *, is_locked: bool = False) -> JobRow:
    """Return one of the tenant's jobs, locked if ``is_locked``.

    Raises:
        NotFound: the tenant has no such job.
    """
    job = session.get(JobRow, job_id)
    if job is None or job.tenant_id != tenant_id:
        raise NotFound(f"there is no job {job_id!r}; list yours with: rdukit job list")
    return lock_job(session, job_id) if is_locked else job


def read_labels(texts: Sequence[str]) -> dict[str, str]:
    """Parse labels given as ``key=value``.

    Raises:
        InvalidArgument: a text has another form, or its key is not a valid label.
    """
    found: dict[str, str] = {}
    for text in texts:
        key, sign, value = text.partition("=")
        if not sign or not LABEL_KEY.fullmatch(key):
            raise InvalidArgument(f"label {text[:200]!r} is not valid; expected KEY=VALUE, such as project=genes")
        found[key] = value
    return found


def list_attempts(session: Session, job_id: str) -> Sequence[AttemptRow]:
    """Return a job's attempts with their parts, first one first."""
    query = select(AttemptRow).where(AttemptRow.job_id == job_id).order_by(AttemptRow.number)
    return session.scalars(query.options(selectinload(AttemptRow.parts))).all()


def list_events(
    session: Session, job_id: str, after: int = 0, limit: int = 1000, kind: str | None = None
) -> Sequence[JobEventRow]:
    """Return a job's events after a sequence number, oldest first."""
    query = select(JobEventRow).where(JobEventRow.job_id == job_id, JobEventRow.id > after)
    if kind is not None:
        query = query.where(JobEventRow.kind == kind)
    return session.scalars(query.order_by(JobEventRow.id).limit(limit)).all()


def cancel_job(session: Session, job: JobRow, now: float, stopped_early: str = "") -> JobRow:
    """Cancel a job at once, in any open state; its worker notices and stops the box. Cancelling twice is not an error.

    Args:
        stopped_early: reason of its sweep; empty: a user cancels it.
    Raises:
        InvalidTransition: the job has ended in another state.
    """
    state = JobState(job.state)
    if state is JobState.CANCELLED:
        return job
    if state in FINAL:
        raise InvalidTransition(f"job {job.id} has ended: {state} ({job.reason}); nothing is left to cancel")
    attempt = find_open_attempt(session, job)
    if attempt is not None:
        attempt.ended_at, attempt.outcome = now, str(AttemptOutcome.CANCELLED)
    if stopped_early:
        error = {"code": str(JobReason.STOPPED_EARLY), "message": stopped_early}
        end_job(session, job, JobEvent.CANCEL, now, JobReason.STOPPED_EARLY, {"error": error}, error=error)
    else:
        end_job(session, job, JobEvent.CANCEL, now, JobReason.CANCELLED_BY_USER)
    return job


def pause_job(session: Session, job: JobRow, now: float) -> JobRow:
    """Pause a job, which the caller has locked, until it is resumed. Pausing twice is not an error.

    A waiting job is paused at once. A claimed attempt is asked to end: a training writes a checkpoint, and the job is
    paused when its tiles are free.

    Raises:
        InvalidTransition: the job has ended.
    """
    state = JobState(job.state)
    if state in FINAL:
        raise InvalidTransition(f"job {job.id} has ended: {state} ({job.reason}); nothing is left to pause")
    attempt = find_open_attempt(session, job)
    if state is JobState.PAUSED:
        return job
    if attempt is not None and attempt.claimed_at is not None:
        attempt.pause_asked_at = attempt.pause_asked_at or now
        job.waits_for = "it is being paused: its attempt ends"
        session.flush()
        return job
    if attempt is not None:
        attempt.ended_at, attempt.outcome = now, str(AttemptOutcome.PAUSED)
    apply_event(session, job, JobEvent.PAUSE, now)
    return job


def resume_job(session: Session, job: JobRow, now: float) -> JobRow:
    """Resume a paused job, which the caller has locked; any other open job is left alone.

    A requested pause that has not happened yet is revoked; if its attempt still ends, another one follows.

    Raises:
        InvalidTransition: the job has ended.
    """
    state = JobState(job.state)
    if state in FINAL:
        raise InvalidTransition(f"job {job.id} has ended: {state} ({job.reason}); submit it again: rdukit job clone")
    attempt = find_open_attempt(session, job)
    if attempt is not None and attempt.pause_asked_at is not None:
        attempt.pause_asked_at = job.waits_for = None
        session.flush()
    if state is not JobState.PAUSED:
        return job
    is_waiting = any(text.startswith("@") for text in job.inputs.values())
    apply_event(session, job, JobEvent.AWAIT if is_waiting else JobEvent.RESUME, now)
    if is_waiting and job.pipeline_id is not None:
        promote_steps(session, job.pipeline_id, now)
        session.refresh(job)
    return job


def find_job_by_key(session: Session, tenant_id: str, key: str) -> JobRow | None:
    """Return the tenant's job with this idempotency key."""
    return session.scalars(
        select(JobRow).where(JobRow.tenant_id == tenant_id, JobRow.idempotency_key == key)
    ).one_or_none()


def _same_request(job: JobRow, request: JobRequest) -> JobRow:
    # A single job's inputs are never rewritten, so they can be compared.
    if was_asked_for(job, request) and job.inputs == request.inputs:
        return job
    raise Conflict(
        f"idempotency key {request.idempotency_key!r} belongs to job {job.id}, which asked for something else; "
        "use a new key"
    )


def was_asked_for(job: JobRow, request: JobRequest | StepRequest) -> bool:
    """Return whether a job matches the request, except for its inputs: references may have become artifacts."""
    asked = {"verb": request.verb, "parameters": request.parameters, **chosen(request, job.created_at)}
    # "The newest" is the version that was the newest when the job was submitted.
    is_of_box = read_selector(request.box).takes(job.box, job.box_version)
    return is_of_box and all(getattr(job, name) == value for name, value in asked.items())


#: Fields of a request that a row keeps under the same name.
_PLAIN: Final = frozenset(QueueChoices.model_fields) - {"deadline", "deadline_s", "retry"}


def chosen(request: JobRequest | StepRequest, submitted_at: float) -> dict[str, Any]:
    """Return the columns of a job that was submitted at that time; defaults fill missing values."""
    return {
        **request.model_dump(include=set(_PLAIN)),
        "name": request.name or f"{request.box} {request.verb}",
        "tiles": default_tiles(request.verb) if request.tiles is None else request.tiles,
        "max_attempts": request.max_attempts or resolve(JOB_MAX_ATTEMPTS),
        "retry": None if request.retry is None else request.retry.model_dump(exclude_none=True),
        "deadline_at": deadline_of(request, submitted_at),
    }
