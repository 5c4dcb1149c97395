"""Inputs of an attempt: its artifacts from the store, its own box, and whether its PEF fits its tiles."""

from collections.abc import Mapping
from pathlib import Path

from sqlalchemy import select

from rdukit.errors import InvalidArgument, NotFound, PermissionDenied, RdukitError
from rdukit.files.atomic import remove_tree
from rdukit.pef.file import read_tiles
from rdukit_platform.artifacts.store import ContentDamaged
from rdukit_platform.backends.job_boxes import OwnBox
from rdukit_platform.catalog.model import Selector
from rdukit_platform.db.models import ArtifactRow, JobRow
from rdukit_platform.jobs.attempts import AttemptOutcome
from rdukit_platform.jobs.fit import PEF, check_pef
from rdukit_platform.worker.context import WorkerContext, bring_own_box


class AttemptFailure(Exception):
    """Outcome that an attempt ends with, raised inside it."""

    def __init__(self, outcome: AttemptOutcome, error: RdukitError) -> None:
        super().__init__(error.message)
        self.outcome = outcome
        self.error: dict[str, object] = {"code": error.code, "message": error.message, "detail": dict(error.detail)}


def bring_inputs(context: WorkerContext, job: JobRow, incoming: Path) -> dict[str, str]:
    """Put the job's inputs into a new folder. Returns the path of each slot.

    Raises:
        AttemptFailure: the content of one is not in the store.
    """
    remove_tree(incoming)
    incoming.mkdir()
    paths: dict[str, str] = {}
    if not job.inputs:
        return paths
    with context.database.read() as session:
        rows = session.scalars(select(ArtifactRow).where(ArtifactRow.id.in_(job.inputs.values()))).all()
        artifacts = {row.id: row for row in rows}
    for slot, artifact_id in job.inputs.items():
        target = incoming / slot
        try:
            artifact = artifacts[artifact_id]
            if not artifact.is_folder and artifact.file_name:
                target = target / artifact.file_name
            context.store.materialize(artifact.digest, artifact.is_folder, target)
        except (KeyError, NotFound, ContentDamaged) as cause:
            error = NotFound(f"input {slot!r}: the content of artifact {artifact_id} is not in the store: {cause}")
            raise AttemptFailure(AttemptOutcome.INPUT_LOST, error) from cause
        paths[slot] = str(target)
    return paths


def bring_box(context: WorkerContext, job: JobRow, folder: Path) -> OwnBox | None:
    """Fetch what a box that the job's tenant installed runs from; ``None``: the box comes with rdukit.

    Raises:
        AttemptFailure: it is not allowed any more, or lost.
    """
    if job.box_version is None:
        return None
    try:
        return bring_own_box(context, job.tenant_id, Selector(job.box, job.box_version), folder)
    except (PermissionDenied, InvalidArgument) as refused:
        raise AttemptFailure(AttemptOutcome.BOX_FAILED, refused) from refused
    except NotFound as lost:
        raise AttemptFailure(AttemptOutcome.INPUT_LOST, lost) from lost


def check_tiles(job: JobRow, inputs: Mapping[str, str]) -> None:
    """Refuse what no number of attempts mends: an earlier step's PEF that needs more tiles than the job has.

    Raises:
        AttemptFailure: it does.
    """
    path = Path(inputs.get(PEF, ""))
    if job.tiles and path.is_file():
        try:
            check_pef(job.tiles, read_tiles(path))
        except RdukitError as refused:
            raise AttemptFailure(AttemptOutcome.BOX_FAILED, refused) from refused
