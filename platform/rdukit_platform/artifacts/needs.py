"""Needs of artifacts: a needed artifact can neither be deleted nor expire.

Other tables that refer to artifacts are found by their foreign keys. Each of their rows is a need, so tables added
later are safe without a change here.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import Column, exists, or_, select
from sqlalchemy.orm import Session

from rdukit_platform.db.models import (
    ArtifactRow,
    Base,
    BoxRow,
    EndpointReplicaRow,
    EndpointRevisionRow,
    EndpointRow,
    ExpertRow,
    JobRow,
    LineageRow,
    ScheduleRow,
    SweepRow,
)
from rdukit_platform.db.references import read_reference

#: Columns that refer to artifacts but are handled below, or only record history, as lineage does.
KNOWN: Final = frozenset(
    {
        "boxes.artifact_id",
        "endpoint_revisions.bundle_id",
        "endpoint_revisions.checkpoint_id",
        "endpoint_revisions.pef_id",
        "experts.checkpoint_id",
        "experts.pef_id",
        "lineage.child",
        "lineage.parent",
    }
)
#: Largest number of needs that a refusal names.
MAX_NAMED: Final = 5


@dataclass(frozen=True, slots=True)
class Need:
    """Need of an artifact: kind and name of its holder, and how to end the need."""

    kind: str
    name: str
    way_out: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


def read_needs(session: Session, tenant_id: str) -> dict[str, list[Need]]:
    """Return the needs of the tenant's artifacts by artifact id; artifacts without needs are missing."""
    found: dict[str, list[Need]] = {}
    for artifact_id, need in _all_needs(session, tenant_id):
        known = found.setdefault(artifact_id, [])
        if need not in known:
            known.append(need)
    return found


def describe_needs(needs: Sequence[Need]) -> str:
    """Describe the needs of an artifact, and how to end them."""
    named = ", ".join(str(need) for need in needs[:MAX_NAMED]) + (", …" if len(needs) > MAX_NAMED else "")
    return f"{named}; {', or '.join(dict.fromkeys(need.way_out for need in needs))}"


def unknown_references() -> list[Column[object]]:
    """Return the columns of rows that refer to artifacts and are not ``KNOWN``."""
    target = ArtifactRow.__table__
    return [
        column
        for table in Base.metadata.sorted_tables
        for column in table.columns
        if any(key.column.table is target for key in column.foreign_keys) and f"{table.name}.{column.name}" not in KNOWN
    ]


def _all_needs(session: Session, tenant_id: str) -> Iterator[tuple[str, Need]]:
    boxes = {
        (row.name, row.version): row.artifact_id
        for row in session.scalars(select(BoxRow).where(BoxRow.tenant_id == tenant_id, BoxRow.artifact_id.is_not(None)))
    }
    yield from _needs_of_jobs(session, tenant_id, boxes)
    yield from _needs_of_sweeps(session, tenant_id, boxes)
    yield from _needs_of_schedules(session, tenant_id)
    for expert in session.scalars(select(ExpertRow).where(ExpertRow.tenant_id == tenant_id)):
        need = Need("expert", f"{expert.name}:{expert.version}", "experts keep their artifacts")
        box = boxes.get((expert.box, expert.box_version or 0))
        yield from ((one, need) for one in (expert.checkpoint_id, expert.pef_id, box) if one is not None)
    served = select(EndpointRow.name, EndpointRevisionRow).join(
        EndpointRevisionRow, EndpointRevisionRow.endpoint_id == EndpointRow.id
    )
    # A deleted endpoint may have draining replicas.
    has_replicas = exists().where(
        EndpointReplicaRow.endpoint_id == EndpointRow.id, EndpointReplicaRow.ended_at.is_(None)
    )
    is_there = or_(EndpointRow.deleted_at.is_(None), has_replicas)
    for name, revision in session.execute(served.where(EndpointRow.tenant_id == tenant_id, is_there)):
        way_out = f"endpoints keep the artifacts of their revisions until rdukit endpoint delete {name}"
        need = Need("endpoint", f"{name}, revision {revision.number}", way_out)
        box = boxes.get((revision.box, revision.box_version or 0))
        own = (revision.checkpoint_id, revision.pef_id, revision.bundle_id, box)
        yield from ((one, need) for one in own if one is not None)
        if revision.bundle_id is not None:
            named = select(LineageRow.parent).where(LineageRow.child == revision.bundle_id, LineageRow.job_id.is_(None))
            yield from ((one, need) for one in session.scalars(named))
    installed = select(BoxRow.name, BoxRow.version, BoxRow.artifact_id).where(
        BoxRow.tenant_id == tenant_id, BoxRow.uninstalled_at.is_(None), BoxRow.artifact_id.is_not(None)
    )
    for name, version, artifact_id in session.execute(installed):
        yield str(artifact_id), Need("box", f"{name}:{version}", "uninstall the box: rdukit box uninstall")
    for column in unknown_references():
        table = column.table
        query = select(column, *table.primary_key.columns).where(column.is_not(None))
        if "tenant_id" in table.columns:
            query = query.where(table.columns["tenant_id"] == tenant_id)
        for artifact_id, *key in session.execute(query):
            yield str(artifact_id), Need(table.name.removesuffix("s"), "/".join(map(str, key)), "end that first")


def _needs_of_jobs(
    session: Session, tenant_id: str, boxes: dict[tuple[str, int], str | None]
) -> Iterator[tuple[str, Need]]:
    open_jobs = session.scalars(select(JobRow).where(JobRow.tenant_id == tenant_id, JobRow.ended_at.is_(None))).all()
    pipelines = {job.pipeline_id for job in open_jobs if any(text.startswith("@") for text in job.inputs.values())}
    steps = select(JobRow).where(JobRow.pipeline_id.in_(pipelines), JobRow.ended_at.is_not(None))
    ended: dict[str | None, dict[str, JobRow]] = {}
    for job in session.scalars(steps) if pipelines else ():
        ended.setdefault(job.pipeline_id, {})[job.step or ""] = job
    for job in open_jobs:
        need = Need("job", job.id, f"wait for jobs that have not ended, or end them: rdukit job cancel {job.id}")
        for text in job.inputs.values():
            reference = read_reference(text)
            if reference is None:
                yield text, need
                continue
            made = ended.get(job.pipeline_id, {})
            outputs = [made[name].outputs.get(reference.slot) for name in reference.candidates(made)]
            yield from ((artifact_id, need) for artifact_id in outputs if artifact_id is not None)
        box = boxes.get((job.box, job.box_version or 0))
        if box is not None:
            yield box, need


def _needs_of_sweeps(
    session: Session, tenant_id: str, boxes: dict[tuple[str, int], str | None]
) -> Iterator[tuple[str, Need]]:
    # Future trials use the inputs that the sweep was submitted with.
    for row in session.scalars(select(SweepRow).where(SweepRow.tenant_id == tenant_id, SweepRow.ended_at.is_(None))):
        need = Need("sweep", row.id, f"wait for sweeps that have not ended, or end them: rdukit sweep cancel {row.id}")
        job = row.request["job"]
        assert isinstance(job, dict)
        yield from ((artifact_id, need) for artifact_id in job["inputs"].values())
        name, _, version = str(job["box"]).partition(":")
        box = boxes.get((name, int(version or 0)))
        if box is not None:
            yield box, need


def _needs_of_schedules(session: Session, tenant_id: str) -> Iterator[tuple[str, Need]]:
    for row in session.scalars(select(ScheduleRow).where(ScheduleRow.tenant_id == tenant_id)):
        need = Need("schedule", row.name, f"remove the schedule: rdukit pipeline unschedule {row.name}")
        steps = row.request["steps"]
        assert isinstance(steps, list)
        for step in steps:
            lists = [values for name, values in (step.get("for_each") or {}).items() if name.startswith("inputs.")]
            given = [*step.get("inputs", {}).values(), *(value for values in lists for value in values)]
            yield from ((text, need) for text in given if read_reference(text) is None)
