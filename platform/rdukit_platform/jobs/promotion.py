"""A pipeline's next steps: they are queued when their inputs exist, and ended when an earlier step made none.

This happens in the transaction that ends a step, so no loop has to search the waiting jobs.
"""

from collections.abc import Mapping, Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from rdukit_platform.db.models import JobRow
from rdukit_platform.db.references import StepReference, read_reference
from rdukit_platform.jobs.caching import cache_key, find_cached
from rdukit_platform.jobs.changes import apply_event
from rdukit_platform.jobs.fan_out import choose, explain_none
from rdukit_platform.jobs.states import FINAL, JobEvent, JobReason, JobState


def pipeline_jobs(session: Session, pipeline_id: str) -> Sequence[JobRow]:
    """Return a pipeline's jobs in the order of its steps."""
    return session.scalars(
        select(JobRow).where(JobRow.pipeline_id == pipeline_id).order_by(JobRow.created_at, JobRow.id)
    ).all()


def end_job(
    session: Session,
    job: JobRow,
    event: JobEvent,
    now: float,
    reason: JobReason | None,
    data: Mapping[str, object] | None = None,
    **columns: object,
) -> JobState:
    """Apply an event to ``job``, which the caller has locked. If it ends, promote the steps of its pipeline."""
    after = apply_event(session, job, event, now, reason, data, **columns)
    if after in FINAL and job.pipeline_id is not None:
        promote_steps(session, job.pipeline_id, now)
    return after


def promote_steps(session: Session, pipeline_id: str, now: float) -> int:
    """Queue the submitted steps whose inputs exist; end those whose earlier step made none. Returns how many changed.

    The caller has locked the pipeline (``lock_job``), so of two steps that end together the second sees the first's
    end.
    """
    steps = {job.step or "": job for job in pipeline_jobs(session, pipeline_id)}
    # The order of the steps lets an end reach all later steps: steps refer to earlier ones only.
    return sum(_promote(session, job, steps, now) for job in steps.values() if job.state == JobState.SUBMITTED)


def promote_all(session: Session, now: float) -> int:
    """Promote the steps of all pipelines, and single jobs that older versions left submitted. Returns how many."""
    rows = session.scalars(select(JobRow).where(JobRow.state == str(JobState.SUBMITTED))).all()
    for job in rows:
        if job.pipeline_id is None:
            apply_event(session, job, JobEvent.READY, now)
    lone = sum(job.pipeline_id is None for job in rows)
    pipelines = sorted({job.pipeline_id for job in rows if job.pipeline_id is not None})
    return lone + sum(promote_steps(session, pipeline, now) for pipeline in pipelines)


def made_inputs(session: Session, job: JobRow) -> dict[str, str]:
    """Return the artifacts that steps have made for the inputs of ``job`` that still refer to steps."""
    references = {slot: found for slot, text in job.inputs.items() if (found := read_reference(text)) is not None}
    if not references or job.pipeline_id is None:
        return {}
    steps = {one.step or "": one for one in pipeline_jobs(session, job.pipeline_id)}
    made: dict[str, str] = {}
    for slot, reference in references.items():
        step = choose(reference, _results(reference, [steps[name] for name in reference.candidates(steps)]))
        if step is not None:
            made[slot] = steps[step].outputs[reference.slot]
    return made


def _results(reference: StepReference, sources: Sequence[JobRow]) -> dict[str, dict[str, object] | None]:
    return {
        one.step or "": one.result
        for one in sources
        if one.state == JobState.SUCCEEDED and reference.slot in one.outputs
    }


def _promote(session: Session, job: JobRow, steps: dict[str, JobRow], now: float) -> bool:
    inputs: dict[str, str] = {}
    chosen: dict[str, str] = {}
    for slot, text in job.inputs.items():
        reference = read_reference(text)
        if reference is None:
            inputs[slot] = text
            continue
        sources = [steps[name] for name in reference.candidates(steps)]
        made = _results(reference, sources)
        if not all(JobState(one.state) in FINAL for one in sources):
            return False
        step = choose(reference, made)
        if step is None:
            last = sources[-1]
            data: dict[str, object] = {"step": last.step, "job": last.id, "state": last.state}
            if reference.metric is not None and made:
                data["lacks"] = reference.metric
            why = f"{explain_none(reference, made)}; job {last.id} of step {last.step} is {last.state}"
            error = {"code": str(JobReason.UPSTREAM_ENDED), "message": why}
            apply_event(session, job, JobEvent.STRAND, now, JobReason.UPSTREAM_ENDED, data, error=error)
            return True
        inputs[slot] = steps[step].outputs[reference.slot]
        if reference.metric is not None:
            chosen[slot] = step
    if not _reuse(session, job, inputs, now):
        apply_event(session, job, JobEvent.READY, now, data={"chosen": chosen} if chosen else None, inputs=inputs)
    return True


def _reuse(session: Session, job: JobRow, inputs: dict[str, str], now: float) -> bool:
    """End a step whose outputs another job of the tenant has made; otherwise store its cache key. Returns whether it
    ended.
    """
    if job.cache_base is None:
        return False
    key = cache_key(session, job.cache_base, inputs)
    known = None if key is None else find_cached(session, job.tenant_id, key)
    if known is None:
        job.cache_key = key
        session.flush()
        return False
    source = known.cached_from or known.id
    apply_event(
        session, job, JobEvent.REUSE, now, JobReason.CACHED, {"job": source}, inputs=inputs,
        outputs=dict(known.outputs), result=known.result, cached_from=source,
    )  # fmt: skip
    return True
