"""What an attempt needs and leaves: fence, inputs and own box, tiles for its PEF; its outputs, or its failure."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from rdukit.errors import (
    ContentDamaged,
    InvalidArgument,
    LeaseWithdrawn,
    NotFenced,
    NotFound,
    OutputRefused,
    Overloaded,
    PermissionDenied,
    RdukitError,
    Unavailable,
)
from rdukit.fence.outputs import OutputLimits, open_output
from rdukit.files.atomic import remove_tree
from rdukit.telemetry.spans import span
from rdukit_platform.artifacts.manifest import FolderEntry
from rdukit_platform.artifacts.service import plain_name
from rdukit_platform.artifacts.store import Content, PendingContent
from rdukit_platform.audit.service import WORKER, Act, AuditOutcome, AuditRecord, record
from rdukit_platform.backends.contract import BoxFence, RunningBox
from rdukit_platform.backends.job_boxes import OwnBox
from rdukit_platform.catalog.model import Selector
from rdukit_platform.db.models import ArtifactRow, JobRow
from rdukit_platform.jobs.attempts import AttemptOutcome
from rdukit_platform.jobs.execution import Output
from rdukit_platform.jobs.fit import PEF, check_averages, check_pef
from rdukit_platform.jobs.pef_summary import summary_of_file
from rdukit_platform.tenants.service import count_tenants
from rdukit_platform.worker import box_ends
from rdukit_platform.worker.context import WorkerContext, bring_own_box
from rdukit_platform.worker.walls import WallKind, check_walls


class AttemptFailure(Exception):
    """Outcome that an attempt ends with, raised inside it."""

    def __init__(self, outcome: AttemptOutcome, error: RdukitError) -> None:
        super().__init__(error.message)
        self.outcome = outcome
        self.error: dict[str, object] = {"code": error.code, "message": error.message, "detail": dict(error.detail)}


def check_fenced(context: WorkerContext) -> None:
    """Refuse to run a box without walls where there are several tenants.

    Raises:
        AttemptFailure: there are.
    """
    if context.fences.walls.kind is not WallKind.NOTHING:
        return
    with context.database.read() as session:
        tenants = count_tenants(session)
    try:
        check_walls(context.fences.walls, tenants)
    except NotFenced as refused:
        raise AttemptFailure(AttemptOutcome.BOX_FAILED, refused) from refused


def find_fence(context: WorkerContext, job: JobRow) -> BoxFence | None:
    """Return the fence of a job's box; ``None``: it has none.

    Raises:
        AttemptFailure: there are no users left for it.
    """
    try:
        return context.fences.of(job.tenant_id)
    except NotFenced as refused:
        raise AttemptFailure(AttemptOutcome.BOX_FAILED, refused) from refused


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
    """Refuse what no number of attempts mends: an earlier step's PEF that needs more tiles, or is of one process only.

    Raises:
        AttemptFailure: it does.
    """
    path = Path(inputs.get(PEF, ""))
    if job.tiles and path.is_file():
        try:
            pef = summary_of_file(path, job.tenant_id)
            check_pef(job.tiles, pef.tiles)
            check_averages(job.members, pef)
        except Overloaded:
            return  # the box finds out
        except RdukitError as refused:
            raise AttemptFailure(AttemptOutcome.BOX_FAILED, refused) from refused


def named_outputs(operation: Mapping[str, Any]) -> Mapping[object, object]:
    """Return the paths that a box gives its outputs by, by their slots (pure).

    Raises:
        AttemptFailure: it gives none of that kind.
    """
    named = operation.get("outputs") or {}
    if not isinstance(named, dict):
        refused = OutputRefused(f"the box names its outputs by {type(named).__name__}; legal is an object")
        raise AttemptFailure(AttemptOutcome.BOX_FAILED, refused)
    return named


def add_outputs(context: WorkerContext, hold: ExitStack, folder: Path, named: Mapping[object, object]) -> list[Output]:
    """Keep what a box says that it made in the store: the slots and paths in its folder of outputs.

    Args:
        hold: closed first, as it may be begun again. It keeps all from being collected until it is closed then.
    Raises:
        AttemptFailure: one is none of what an output may be.
    """
    hold.close()
    hold.enter_context(context.store.holding())
    with span("keep artifacts", {"rdukit.artifacts": len(named)}), context.store.adding() as added:
        return _add_all(context, added, folder, named)


def _add_all(
    context: WorkerContext, added: PendingContent, folder: Path, named: Mapping[object, object]
) -> list[Output]:  # fmt: skip
    limits = OutputLimits(context.fences.limits.disk_bytes, context.fences.limits.disk_files)
    outputs = list[Output]()
    for slot, text in named.items():
        path = Path(str(text).removeprefix("file://"))
        try:
            content = _add_one(added, folder, path, limits)
        except OutputRefused as refused:
            refused.message = f"output {str(slot)!r}: {refused.message}"
            raise AttemptFailure(AttemptOutcome.BOX_FAILED, refused) from refused
        name = None if content.is_folder else plain_name(path.name)
        outputs.append(Output(str(slot), str(slot), content.digest, content.bytes, content.is_folder, name))
    return outputs


def _add_one(added: PendingContent, folder: Path, path: Path, limits: OutputLimits) -> Content:
    with open_output(folder, path, limits) as found:
        if not found.is_folder:
            return added.add_stream(next(found.files).stream)
        entries = []
        for file in found.files:
            content = added.add_stream(file.stream)
            entries.append(FolderEntry(file.path, content.digest, content.bytes, file.is_executable))
        return added.add_manifest(entries, found.empty_folders)


def failure_of(
    operation: Mapping[str, Any], box: RunningBox | None, folder: Path, was_withdrawn: Callable[[], bool]
) -> AttemptFailure:
    """Return what an operation that has failed means for its attempt; ``folder`` has all that its box writes.

    Args:
        was_withdrawn: whether the attempt's tiles were taken.
    """
    error = operation.get("error") or {}
    code, detail = str(error.get("code") or "internal"), dict(error.get("detail") or {})
    outcome = box_ends.outcome_of_error(code, detail, folder)
    if code == LeaseWithdrawn.code and was_withdrawn():
        outcome = AttemptOutcome.WITHDRAWN
    if (taken := box_ends.find_taken(box)) is not None:
        return AttemptFailure(taken[0], Unavailable(taken[1]))
    state = operation.get("state")
    failed = AttemptFailure(outcome, RdukitError(str(error.get("message") or f"the operation is {state}")))
    failed.error |= {"code": code, "detail": detail}
    return failed


def hide_places(error: Mapping[str, object], folder: Path, home: Path) -> dict[str, object]:
    """Return an error without places of the host (pure): a tenant sees what lies in its job's ``folder`` from there."""

    def told(value: object) -> object:
        if isinstance(value, str):
            return value.replace(f"{folder}/", "").replace(str(folder), ".").replace(str(home), "<home>")
        if isinstance(value, Mapping):
            return {key: told(item) for key, item in value.items()}
        return [told(item) for item in value] if isinstance(value, list | tuple) else value

    return {key: told(value) for key, value in error.items()}


def record_refusal(session: Session, job_id: str, error: Mapping[str, object], now: float) -> None:
    """Keep in the audit log that an attempt ended for what its box may not do."""
    job = session.get(JobRow, job_id)
    if job is not None:
        code, message = str(error["code"]), str(error.get("message"))
        record(
            session,
            AuditRecord(now, Act.ATTEMPT, AuditOutcome.REFUSED, WORKER, job.tenant_id,
                        f"{job.id} attempt {job.attempt}", code, message),
        )  # fmt: skip
