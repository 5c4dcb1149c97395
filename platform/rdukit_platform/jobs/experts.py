"""Promotion of a training's or an evaluation's checkpoint to an expert, in the caller's transaction."""

from collections.abc import Mapping
from typing import Final

from sqlalchemy.orm import Session

from rdukit.errors import Conflict, InvalidArgument
from rdukit_platform.artifacts.service import get_artifact
from rdukit_platform.catalog.experts import CHECKPOINT, add_expert, licence_of
from rdukit_platform.catalog.figures import figures_of
from rdukit_platform.catalog.model import Boxes, Selector
from rdukit_platform.db.models import ExpertRow
from rdukit_platform.jobs.service import get_job
from rdukit_platform.jobs.states import FINAL, JobState

#: Verbs whose jobs can be promoted: training makes a checkpoint, evaluation gives the expert its figures.
TRAIN: Final = "train"
EVALUATE: Final = "evaluate"
_LEGAL: Final = f"expected a successful {TRAIN} job with a {CHECKPOINT}, or an {EVALUATE} job of one"


def promote_job(
    session: Session,
    boxes: Boxes,
    tenant_id: str,
    job_id: str,
    name: str,
    now: float,
    description: str = "",
    licence: str | None = None,
) -> ExpertRow:
    """Make the checkpoint that a job made, or evaluated, the next version of the expert ``name``.

    Args:
        licence: ``None``: the box's licence.
    Raises:
        NotFound: the tenant has no such job, or has deleted its checkpoint.
        InvalidArgument: the job neither made nor evaluated a checkpoint.
        Conflict: the job has not succeeded, or is already a version of this expert.
    """
    job = get_job(session, tenant_id, job_id)
    artifacts = {**job.inputs, **job.outputs} if job.verb == EVALUATE else job.outputs
    check_promotable(job.id, job.verb, JobState(job.state), artifacts)
    get_artifact(session, tenant_id, artifacts[CHECKPOINT], is_kept=True)
    if licence is None:
        licence = licence_of(session, boxes, tenant_id, Selector(job.box, job.box_version))
    return add_expert(session, job, artifacts[CHECKPOINT], name, description, licence, figures_of(job.result), now)


def is_promotable(verb: str, state: JobState, artifacts: Mapping[str, str]) -> bool:
    """Return whether a job's checkpoint can be promoted (pure)."""
    return verb in {TRAIN, EVALUATE} and state is JobState.SUCCEEDED and CHECKPOINT in artifacts


def check_promotable(job_id: str, verb: str, state: JobState, artifacts: Mapping[str, str]) -> None:
    """Refuse a job whose checkpoint cannot be promoted (pure).

    Args:
        artifacts: slot to artifact of the job's outputs; for an evaluation, of its checkpoint too.
    Raises:
        InvalidArgument: it neither made nor evaluated a checkpoint.
        Conflict: the job has not succeeded.
    """
    if is_promotable(verb, state, artifacts):
        return
    if verb not in {TRAIN, EVALUATE}:
        raise InvalidArgument(f"job {job_id} is a {verb} job; {_LEGAL}, as rdukit job list --state succeeded shows")
    if state is not JobState.SUCCEEDED:
        wait = "" if state in FINAL else f"; wait for it with: rdukit job watch {job_id}"
        raise Conflict(f"job {job_id} is {state}; {_LEGAL}{wait}")
    made = ", ".join(sorted(artifacts)) or "nothing"
    raise InvalidArgument(f"job {job_id} made {made} and no {CHECKPOINT}; {_LEGAL}")
