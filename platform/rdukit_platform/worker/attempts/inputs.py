"""Inputs and outputs of an attempt: fetch inputs and own box, check tiles, keep outputs, record refusals."""

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from rdukit.errors import (
    ContentDamaged,
    NotFound,
    OutputRefused,
    Overloaded,
    RdukitError,
)
from rdukit.fence.outputs import OutputLimits, open_output
from rdukit.files.atomic import remove_tree
from rdukit.telemetry.spans import span
from rdukit_platform.artifacts.manifest import FolderEntry
from rdukit_platform.artifacts.service import plain_name
from rdukit_platform.artifacts.store import Content, PendingContent
from rdukit_platform.audit.service import WORKER, Act, AuditOutcome, AuditRecord, record
from rdukit_platform.backends.job_boxes import OwnBox
from rdukit_platform.catalog.model import Selector
from rdukit_platform.db.models import ArtifactRow, JobRow
from rdukit_platform.jobs.attempts import AttemptOutcome
from rdukit_platform.jobs.execution import Output
from rdukit_platform.jobs.fit import PEF, check_averages, check_pef
from rdukit_platform.jobs.pef_summary import summary_of_file
from rdukit_platform.tenants.service import count_tenants
from rdukit_platform.worker.context import WorkerContext, bring_own_box
from rdukit_platform.worker.verdicts import AttemptFailure
from rdukit_platform.worker.walls import WallKind, check_walls


def check_fenced(context: WorkerContext) -> None:
    """Refuse to run boxes without isolation if there are several tenants.

    Raises:
        NotFenced: the boxes are not isolated, and there are several tenants.
    """
    if context.fences.walls.kind is not WallKind.NOTHING:
        return
    with context.database.read() as session:
        tenants = count_tenants(session)
    check_walls(context.fences.walls, tenants)


def bring_inputs(context: WorkerContext, job: JobRow, incoming: Path) -> dict[str, str]:
    """Copy the job's inputs into a new folder. Returns the path of each slot.

    Raises:
        NotFound: an input's content is not in the store.
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
            raise NotFound(
                f"input {slot!r}: the content of artifact {artifact_id} is not in the store: {cause}"
            ) from cause
        paths[slot] = str(target)
    return paths


def bring_box(context: WorkerContext, job: JobRow, folder: Path) -> OwnBox | None:
    """Fetch the box if the job's tenant installed it; ``None``: the box is rdukit's.

    Raises:
        PermissionDenied, InvalidArgument: it is no longer allowed. NotFound: its content is lost.
    """
    if job.box_version is None:
        return None
    return bring_own_box(context, job.tenant_id, Selector(job.box, job.box_version), folder)


def check_tiles(job: JobRow, inputs: Mapping[str, str]) -> None:
    """Refuse a PEF of an earlier step that needs more tiles than the job has, or supports one process only. Further
    attempts would fail, too.

    Raises:
        AttemptFailure: the PEF does not fit the job.
    """
    path = Path(inputs.get(PEF, ""))
    if job.tiles and path.is_file():
        try:
            pef = summary_of_file(path, job.tenant_id)
            check_pef(job.tiles, pef.tiles)
            check_averages(job.members, pef)
        except Overloaded:
            return  # the box reports it
        except RdukitError as refused:
            raise AttemptFailure(AttemptOutcome.BOX_FAILED, refused) from refused


def named_outputs(operation: Mapping[str, Any]) -> Mapping[object, object]:
    """Return the paths of a box's outputs by slot (pure).

    Raises:
        OutputRefused: the box's answer is not an object.
    """
    named = operation.get("outputs") or {}
    if not isinstance(named, dict):
        raise OutputRefused(f"the box names its outputs by {type(named).__name__}; expected an object")
    return named


def add_outputs(context: WorkerContext, hold: ExitStack, folder: Path, named: Mapping[object, object]) -> list[Output]:
    """Store the outputs that a box names: slots, and paths in its output folder.

    Args:
        hold: closed first, because the call may be repeated. Until it is closed again, the content cannot be collected.
    Raises:
        OutputRefused: an output is not a permitted file or folder.
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
            raise
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


def hide_places(error: Mapping[str, object], folder: Path, home: Path) -> dict[str, object]:
    """Return an error without paths of the host (pure): paths in the job's ``folder`` become relative to it."""

    def told(value: object) -> object:
        if isinstance(value, str):
            return value.replace(f"{folder}/", "").replace(str(folder), ".").replace(str(home), "<home>")
        if isinstance(value, Mapping):
            return {key: told(item) for key, item in value.items()}
        return [told(item) for item in value] if isinstance(value, list | tuple) else value

    return {key: told(value) for key, value in error.items()}


def record_refusal(session: Session, job_id: str, error: Mapping[str, object], now: float) -> None:
    """Record in the audit log that an attempt ended because its box did something forbidden."""
    job = session.get(JobRow, job_id)
    if job is not None:
        code, message = str(error["code"]), str(error.get("message"))
        record(
            session,
            AuditRecord(now, Act.ATTEMPT, AuditOutcome.REFUSED, WORKER, job.tenant_id,
                        f"{job.id} attempt {job.attempt}", code, message),
        )  # fmt: skip
