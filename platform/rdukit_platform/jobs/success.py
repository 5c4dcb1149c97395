"""Artifacts and lineage that a successful job adds to the database."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy.orm import Session

from rdukit_platform.artifacts.quota import check_quota
from rdukit_platform.db.models import ArtifactRow, JobRow, LineageRow
from rdukit_platform.db.rows import new_id


@dataclass(frozen=True, slots=True)
class Output:
    """Content in the store that becomes an artifact when the attempt succeeds."""

    slot: str
    kind: str
    digest: str
    bytes: int
    is_folder: bool
    #: Name that the box gave to a file.
    file_name: str | None = None


def add_artifacts(session: Session, job: JobRow, outputs: Sequence[Output], now: float) -> dict[str, str]:
    """Add a job's outputs as artifacts. Returns slot to artifact id.

    Raises:
        QuotaExceeded: they exceed the tenant's quota; nothing was added.
    """
    check_quota(session, job.tenant_id, sum(output.bytes for output in outputs), is_kept=True)
    made = {output.slot: new_id("art") for output in outputs}
    for output in outputs:
        artifact = ArtifactRow(
            id=made[output.slot],
            tenant_id=job.tenant_id,
            name=f"{job.name} {output.slot}",
            kind=output.kind,
            digest=output.digest,
            bytes=output.bytes,
            is_folder=output.is_folder,
            file_name=output.file_name,
            job_id=job.id,
            slot=output.slot,
            created_at=now,
        )
        session.add(artifact)
    session.flush()  # lineage refers to them
    for id in made.values():
        session.add_all(
            LineageRow(child=id, parent=parent, slot=slot, job_id=job.id) for slot, parent in job.inputs.items()
        )
    session.flush()
    return made
