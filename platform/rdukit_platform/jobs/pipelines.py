"""Pipelines: jobs whose inputs are outputs of earlier steps, written ``@step.slot``."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from sqlalchemy import select
from sqlalchemy.orm import Session

from rdukit.errors import Conflict, InvalidArgument, NotFound, RdukitError
from rdukit_platform.artifacts.store import BlobStore
from rdukit_platform.catalog.check import check_metric
from rdukit_platform.catalog.model import BoxDescription, Boxes, BoxVerb
from rdukit_platform.catalog.own import with_own
from rdukit_platform.db.models import JobRow, PipelineRow
from rdukit_platform.db.references import group_of, read_reference
from rdukit_platform.db.rows import new_id, read_page
from rdukit_platform.jobs.changes import lock_job
from rdukit_platform.jobs.fan_out import expand_steps
from rdukit_platform.jobs.fit import with_tiles
from rdukit_platform.jobs.promotion import pipeline_jobs, promote_steps
from rdukit_platform.jobs.schemas import PipelineRequest, StepRequest
from rdukit_platform.jobs.service import (
    add_jobs,
    artifact_kind,
    cancel_job,
    check_deadline,
    check_request,
    new_job,
    was_asked_for,
)
from rdukit_platform.jobs.states import FINAL, JobState


def submit_pipeline(
    session: Session, boxes: Boxes, tenant_id: str, request: PipelineRequest, now: float, by: str | None = None
) -> tuple[PipelineRow, Sequence[JobRow]]:
    """Record a pipeline that ``by`` submits, and all its jobs, or nothing.

    Raises:
        InvalidArgument: a step is not valid, or refers to an output that no earlier step has.
        NotFound: a box or an artifact does not exist.
    """
    request = with_steps_expanded(request)
    if request.idempotency_key is not None:
        earlier = session.scalars(
            select(PipelineRow).where(
                PipelineRow.tenant_id == tenant_id, PipelineRow.idempotency_key == request.idempotency_key
            )
        ).one_or_none()
        if earlier is not None:
            return _same_pipeline(session, earlier, request)
    found = check_pipeline(session, boxes, tenant_id, request, now)
    pipeline = PipelineRow(
        id=new_id("pipe"),
        tenant_id=tenant_id,
        name=request.name,
        idempotency_key=request.idempotency_key,
        created_at=now,
    )
    session.add(pipeline)
    session.flush()
    # A microsecond apart, so that listing them keeps the order of the steps.
    jobs = [
        new_job(
            tenant_id, step, found[step.name], now + number * 1e-6, pipeline_id=pipeline.id,
            is_cached=request.cache and step.cache, by=by,
        )
        for number, step in enumerate(request.steps)
    ]  # fmt: skip
    add_jobs(session, jobs, now)
    promote_steps(session, pipeline.id, now)
    return pipeline, jobs


def check_pipeline(
    session: Session, boxes: Boxes, tenant_id: str, request: PipelineRequest, now: float
) -> dict[str, BoxDescription]:
    """Check a pipeline with expanded steps. Returns the box of each step.

    Raises as ``submit_pipeline``, except for the key.
    """
    found = check_steps(
        with_own(session, boxes, tenant_id, [step.box for step in request.steps]),
        request.steps,
        {a: artifact_kind(session, tenant_id, a) for s in request.steps for a in s.inputs.values() if a[:1] != "@"},
    )
    for step in request.steps:
        with _naming(step):
            check_deadline(step, now)
    return found


def with_step_tiles(
    store: BlobStore, session: Session, tenant_id: str, steps: Iterable[StepRequest]
) -> list[StepRequest]:
    """Return the steps with their tiles. Raises as ``with_tiles``."""
    found = list[StepRequest]()
    for step in steps:
        with _naming(step):
            found.append(with_tiles(store, session, tenant_id, step))
    return found


@contextmanager
def _naming(step: StepRequest) -> Iterator[None]:
    """Name the step in errors that are raised inside the block."""
    try:
        yield
    except RdukitError as refused:
        raise type(refused)(
            f"step {step.name!r}: {refused.message}", **{**refused.detail, "step": step.name}
        ) from refused


def with_steps_expanded(request: PipelineRequest) -> PipelineRequest:
    """Return the pipeline with its steps expanded by ``expand_steps`` (pure)."""
    return request.model_copy(update={"steps": expand_steps(request.steps)})


def cancel_pipeline(session: Session, tenant_id: str, pipeline_id: str, now: float) -> PipelineRow:
    """Cancel all jobs of a pipeline that have not ended. Cancelling twice is not an error.

    Raises:
        NotFound: the tenant has no such pipeline.
    """
    pipeline = get_pipeline(session, tenant_id, pipeline_id)
    # From the last: waiting steps then end as cancelled by the user, not for a missing input.
    for job in reversed(pipeline_jobs(session, pipeline.id)):
        locked = lock_job(session, job.id)
        if JobState(locked.state) not in FINAL:
            cancel_job(session, locked, now)
    return pipeline


def check_steps(boxes: Boxes, steps: Sequence[StepRequest], kinds: Mapping[str, str]) -> dict[str, BoxDescription]:
    """Return the box of each step. References may name outputs of earlier steps only, which excludes cycles.

    Args:
        kinds: the kind of each artifact that a step names by id.
    """
    found: dict[str, BoxDescription] = {}
    verbs: dict[str, BoxVerb] = {}
    for step in steps:
        if step.name in verbs:
            raise InvalidArgument(f"two steps are called {step.name!r}; names must differ")
        slots = {slot: _kind_of(step, text, verbs, kinds) for slot, text in step.inputs.items()}
        for text in step.inputs.values():
            reference = read_reference(text)
            if reference is not None and reference.metric is not None:
                first = reference.candidates(verbs)[0]
                check_metric(found[first], verbs[first], reference.metric, f"step {step.name!r}, {text}")
        with _naming(step):
            found[step.name] = check_request(boxes, step, slots)
        verbs[step.name] = found[step.name].verb(step.verb)
    return found


def get_pipeline(session: Session, tenant_id: str, pipeline_id: str) -> PipelineRow:
    """Return one of the tenant's pipelines.

    Raises:
        NotFound: the tenant has no such pipeline.
    """
    row = session.get(PipelineRow, pipeline_id)
    if row is None or row.tenant_id != tenant_id:
        raise NotFound(f"there is no pipeline {pipeline_id!r}; list yours with: rdukit pipeline list")
    return row


def list_pipelines(
    session: Session, tenant_id: str, limit: int = 50, cursor: str | None = None
) -> tuple[list[PipelineRow], str | None]:
    """Return the tenant's pipelines, newest first, and the cursor of the next page."""
    query = select(PipelineRow).where(PipelineRow.tenant_id == tenant_id)
    return read_page(session, query, PipelineRow.created_at, PipelineRow.id, limit, cursor)


def _kind_of(step: StepRequest, text: str, verbs: Mapping[str, BoxVerb], kinds: Mapping[str, str]) -> str:
    reference = read_reference(text)
    if reference is None:
        return kinds[text]
    sources = reference.candidates(verbs)
    if not sources:
        members = [name for name in verbs if group_of(name) == reference.step]
        if members:
            raise InvalidArgument(
                f"step {step.name!r} refers to {text!r}, but {reference.step!r} is {len(members)} jobs; expected "
                f"@{reference.step}[*].{reference.slot} for each of them, @{reference.step}[0].{reference.slot} for "
                f"one, @{reference.step}[max: METRIC].{reference.slot} or [min: METRIC] for the best"
            )
        group = group_of(reference.step)
        members = [name for name in verbs if group_of(name) == group != name]
        if members:
            jobs = f"{len(members)} {'job' if len(members) == 1 else 'jobs'}"
            one_of = " to ".join(dict.fromkeys([members[0], members[-1]]))
            raise InvalidArgument(f"step {step.name!r} refers to {text!r}, but {group!r} has {jobs}; expected {one_of}")
        legal = ", ".join(sorted({group_of(name) for name in verbs})) or "none, it is the first"
        raise InvalidArgument(
            f"step {step.name!r} refers to {text!r}, but no step before it is called {reference.step!r}; "
            f"expected {legal}"
        )
    outputs = {output.name: output.kind for output in verbs[sources[0]].outputs}
    if reference.slot in outputs:
        return outputs[reference.slot]
    raise InvalidArgument(
        f"step {step.name!r} refers to {text!r}, but step {reference.step!r} has the outputs "
        f"{', '.join(outputs) or 'none'}"
    )


def _same_pipeline(
    session: Session, pipeline: PipelineRow, request: PipelineRequest
) -> tuple[PipelineRow, Sequence[JobRow]]:
    jobs = pipeline_jobs(session, pipeline.id)
    if len(jobs) != len(request.steps) or not all(map(was_asked_for, jobs, request.steps)):
        raise Conflict(
            f"idempotency key {request.idempotency_key!r} belongs to pipeline {pipeline.id}, "
            "which asked for something else; use a new key"
        )
    return pipeline, jobs
