"""Pipelines: jobs whose inputs are outputs of earlier steps, written ``@step.slot``."""

import re
from collections.abc import Mapping, Sequence
from typing import Final

from sqlalchemy import select
from sqlalchemy.orm import Session

from rdukit.errors import Conflict, InvalidArgument, NotFound
from rdukit_platform.catalog.model import Boxes, Verb
from rdukit_platform.db.models import JobRow, PipelineRow
from rdukit_platform.ids import new_id
from rdukit_platform.jobs.changes import apply_event
from rdukit_platform.jobs.schemas import PipelineRequest, StepRequest
from rdukit_platform.jobs.service import artifact_kind, check_request, record_job
from rdukit_platform.jobs.states import FINAL, JobEvent, JobState, Reason
from rdukit_platform.paging import read_page

REFERENCE: Final = re.compile(r"^@(?P<step>[a-z][a-z0-9_-]*)\.(?P<slot>[A-Za-z0-9_-]+)$")


def read_reference(text: str) -> tuple[str, str] | None:
    """Step and slot of ``@step.slot``; ``None`` for an artifact id.

    Raises:
        InvalidArgument: it starts with ``@`` but is no reference.
    """
    if not text.startswith("@"):
        return None
    found = REFERENCE.match(text)
    if found is None:
        raise InvalidArgument(f"{text!r} is not a reference; legal: @step.slot, such as @train.checkpoint")
    return found["step"], found["slot"]


def submit_pipeline(
    session: Session, boxes: Boxes, tenant_id: str, request: PipelineRequest, now: float
) -> tuple[PipelineRow, Sequence[JobRow]]:
    """Record a pipeline and all its jobs, or nothing.

    Raises:
        InvalidArgument: a step is not legal, or refers to what no earlier step has.
        NotFound: a box or an artifact does not exist.
    """
    if request.idempotency_key is not None:
        earlier = session.scalars(
            select(PipelineRow).where(
                PipelineRow.tenant_id == tenant_id, PipelineRow.idempotency_key == request.idempotency_key
            )
        ).one_or_none()
        if earlier is not None:
            return _same_pipeline(session, earlier, request)
    verbs = check_steps(
        boxes,
        request.steps,
        {a: artifact_kind(session, tenant_id, a) for s in request.steps for a in s.inputs.values() if a[:1] != "@"},
    )
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
        record_job(session, tenant_id, step, verbs[step.name], now + number * 1e-6, pipeline_id=pipeline.id)
        for number, step in enumerate(request.steps)
    ]
    return pipeline, jobs


def check_steps(boxes: Boxes, steps: Sequence[StepRequest], kinds: Mapping[str, str]) -> dict[str, Verb]:
    """The verb of each step; every reference names an output of a step before it (so there is no cycle).

    Args:
        kinds: the kind of each artifact that a step names by id.
    """
    verbs: dict[str, Verb] = {}
    for step in steps:
        if step.name in verbs:
            raise InvalidArgument(f"two steps are called {step.name!r}; names must differ")
        slots = {slot: _kind_of(step, text, verbs, kinds) for slot, text in step.inputs.items()}
        verbs[step.name] = check_request(boxes, step, slots)
    return verbs


def promote_jobs(session: Session, now: float) -> int:
    """Queue the submitted jobs whose inputs are all there; end those whose earlier step gave none. Returns how many."""
    changed = 0
    waiting = session.scalars(
        select(JobRow).where(JobRow.state == str(JobState.SUBMITTED)).order_by(JobRow.created_at)
    ).all()
    for job in waiting:
        siblings = _siblings(session, job)
        inputs: dict[str, str] = {}
        for slot, text in job.inputs.items():
            reference = read_reference(text)
            if reference is None:
                inputs[slot] = text
                continue
            source = siblings[reference[0]]
            if source.state == JobState.SUCCEEDED and reference[1] in source.outputs:
                inputs[slot] = source.outputs[reference[1]]
            elif JobState(source.state) in FINAL:
                data: dict[str, object] = {"step": reference[0], "job": source.id, "state": source.state}
                apply_event(session, job, JobEvent.STRAND, now, Reason.UPSTREAM_ENDED, data)
                changed += 1
                break
            else:
                break
        else:
            apply_event(session, job, JobEvent.READY, now, inputs=inputs)
            changed += 1
    return changed


def get_pipeline(session: Session, tenant_id: str, pipeline_id: str) -> PipelineRow:
    """One of the tenant's pipelines.

    Raises:
        NotFound: the tenant has no such pipeline.
    """
    row = session.get(PipelineRow, pipeline_id)
    if row is None or row.tenant_id != tenant_id:
        raise NotFound(f"there is no pipeline {pipeline_id!r}")
    return row


def list_pipelines(
    session: Session, tenant_id: str, limit: int = 50, cursor: str | None = None
) -> tuple[list[PipelineRow], str | None]:
    """The tenant's pipelines, newest first, and the cursor of the next page."""
    query = select(PipelineRow).where(PipelineRow.tenant_id == tenant_id)
    return read_page(session, query, PipelineRow.created_at, PipelineRow.id, limit, cursor)


def pipeline_jobs(session: Session, pipeline_id: str) -> Sequence[JobRow]:
    """A pipeline's jobs in the order of its steps."""
    return session.scalars(
        select(JobRow).where(JobRow.pipeline_id == pipeline_id).order_by(JobRow.created_at, JobRow.id)
    ).all()


def _siblings(session: Session, job: JobRow) -> dict[str, JobRow]:
    if job.pipeline_id is None:
        return {}
    return {sibling.step or "": sibling for sibling in pipeline_jobs(session, job.pipeline_id)}


def _kind_of(step: StepRequest, text: str, verbs: Mapping[str, Verb], kinds: Mapping[str, str]) -> str:
    reference = read_reference(text)
    if reference is None:
        return kinds[text]
    source, slot = reference
    if source not in verbs:
        raise InvalidArgument(
            f"step {step.name!r} refers to {text!r}, but no step before it is called {source!r}; "
            f"legal: {sorted(verbs) or 'none, it is the first'}"
        )
    for output in verbs[source].outputs:
        if output.name == slot:
            return output.kind
    legal = [output.name for output in verbs[source].outputs]
    raise InvalidArgument(f"step {step.name!r} refers to {text!r}; step {source!r} has the outputs {legal}")


def _same_pipeline(
    session: Session, pipeline: PipelineRow, request: PipelineRequest
) -> tuple[PipelineRow, Sequence[JobRow]]:
    jobs = pipeline_jobs(session, pipeline.id)
    asked = [(step.name, step.box, step.verb, step.parameters) for step in request.steps]
    if [(job.step, job.box, job.verb, job.parameters) for job in jobs] != asked:
        raise Conflict(
            f"idempotency key {request.idempotency_key!r} belongs to pipeline {pipeline.id}, "
            "which asked for something else; use a new key"
        )
    return pipeline, jobs
