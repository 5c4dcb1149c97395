"""Promotes a training's checkpoint to an expert of the catalog, in the caller's transaction."""

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

#: The verb whose jobs are promoted.
TRAIN: Final = "train"
_LEGAL: Final = f"legal: a {TRAIN} job that has succeeded and made a {CHECKPOINT}"


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
    """Make a training's checkpoint the next version of the expert ``name``.

    Args:
        licence: ``None``: that of the box.
    Raises:
        NotFound: the tenant has no such job, or has deleted its checkpoint.
        InvalidArgument: the job is no training, or has made no checkpoint.
        Conflict: it has not succeeded, or is a version of this expert already.
    """
    job = get_job(session, tenant_id, job_id)
    check_promotable(job.id, job.verb, JobState(job.state), job.outputs)
    get_artifact(session, tenant_id, job.outputs[CHECKPOINT], is_kept=True)
    if licence is None:
        licence = licence_of(session, boxes, tenant_id, Selector(job.box, job.box_version))
    return add_expert(session, job, name, description, licence, figures_of(job.result), now)


def is_promotable(verb: str, state: JobState, outputs: Mapping[str, str]) -> bool:
    """Return whether a job's checkpoint can be promoted (pure)."""
    return verb == TRAIN and state is JobState.SUCCEEDED and CHECKPOINT in outputs


def check_promotable(job_id: str, verb: str, state: JobState, outputs: Mapping[str, str]) -> None:
    """Refuse a job whose checkpoint cannot be promoted (pure).

    Raises:
        InvalidArgument: it is no training, or has made no checkpoint.
        Conflict: it has not succeeded.
    """
    if is_promotable(verb, state, outputs):
        return
    if verb != TRAIN:
        raise InvalidArgument(f"job {job_id} is a {verb} job; {_LEGAL}, as rdukit job list --state succeeded shows")
    if state is not JobState.SUCCEEDED:
        wait = "" if state in FINAL else f"; wait for it with: rdukit job watch {job_id}"
        raise Conflict(f"job {job_id} is {state}; {_LEGAL}{wait}")
    made = ", ".join(sorted(outputs)) or "nothing"
    raise InvalidArgument(f"job {job_id} made {made} and no {CHECKPOINT}; {_LEGAL}")
