"""Successes of jobs: their ends are written with what they have made and, if nobody has yet, with their beginnings."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Row, bindparam, insert, null, select, update
from sqlalchemy.orm import Session

from rdukit_platform.artifacts.quota import check_quota, limit_of
from rdukit_platform.db.base import table_of
from rdukit_platform.db.models import ArtifactRow, AttemptRow, JobRow, LineageRow, TenantRow
from rdukit_platform.db.rows import new_id
from rdukit_platform.jobs.attempts import AttemptOutcome
from rdukit_platform.jobs.changes import JobChange, JobMove, write_changes
from rdukit_platform.jobs.fencing import FencingToken
from rdukit_platform.jobs.states import FINAL, JobEvent, JobReason, JobState

_JOBS, _ATTEMPTS, _TENANTS = table_of(JobRow), table_of(AttemptRow), table_of(TenantRow)
#: Jobs with their open attempts, both locked: who waits for another's change gets both as that leaves them.
_HELD: Final = (
    select(
        _JOBS,
        *(
            _ATTEMPTS.c[name].label(f"attempt_{name}")
            for name in ("id", "token", "started_at", "box", "tiles", "worker", "node")
        ),
        _TENANTS.c.artifact_bytes,
    )
    .join(_ATTEMPTS, _ATTEMPTS.c.job_id == _JOBS.c.id)
    .join(_TENANTS, _TENANTS.c.id == _JOBS.c.tenant_id)
    .where(_ATTEMPTS.c.id.in_(bindparam("attempt_ids", expanding=True)), _ATTEMPTS.c.ended_at.is_(None))
    .order_by(_JOBS.c.id)
    .with_for_update(of=[_JOBS, _ATTEMPTS])
)
_END_SUCCEEDED: Final = (
    update(_ATTEMPTS)
    .where(_ATTEMPTS.c.id == bindparam("ended_id"))
    .values({name: bindparam(name) for name in ("ended_at", "outcome", "started_at", "box", "spans")})
    .values(error=null())
)
_ADD_ARTIFACTS: Final = insert(table_of(ArtifactRow))
_ADD_LINEAGE: Final = insert(table_of(LineageRow))


@dataclass(frozen=True, slots=True)
class Output:
    """Content in the store that becomes an artifact when the attempt succeeds."""

    slot: str
    kind: str
    digest: str
    bytes: int
    is_folder: bool
    #: Of a file: what the box called it.
    file_name: str | None = None


@dataclass(frozen=True, slots=True)
class Begun:
    """Box that has taken the verb of an attempt, as ``start`` writes it, and when."""

    box: Mapping[str, object]
    at: float


@dataclass(frozen=True, slots=True)
class Success:
    """End of an attempt whose box has done its verb."""

    fencing: FencingToken
    outputs: Sequence[Output]
    result: Mapping[str, object] | None
    at: float
    #: These two are as of ``succeed``.
    begun: Begun | None = None
    spans: Sequence[Mapping[str, object]] | None = None


#: A success of an attempt that is its caller's, and the row of its job, with columns of the attempt.
Held = tuple[Success, Row[Any]]


def succeed_all(session: Session, successes: Sequence[Success], now: float) -> dict[FencingToken, Row[Any]]:
    """End jobs that are no steps as ``succeed`` does one, by a few statements for all. Returns those that have ended.

    An attempt that is no longer the caller's is left out. Objects of the session do not show it.

    Raises:
        QuotaExceeded: a tenant may not keep as much; nothing was written.
    """
    held = _lock_held(session, successes)
    _check_quotas(session, held)
    made = _add_artifacts(session, held)
    _end_attempts(session, held)
    changes = [JobChange(job, _moves(each, job, outputs)) for (each, job), outputs in zip(held, made, strict=True)]
    write_changes(session, changes, now)
    return {each.fencing: job for each, job in held}


def _lock_held(session: Session, successes: Sequence[Success]) -> list[Held]:
    rows = session.connection().execute(_HELD, {"attempt_ids": [each.fencing.attempt_id for each in successes]})
    open_jobs = (row for row in rows if JobState(row.state) not in FINAL)
    found = {FencingToken(row.id, row.attempt_id, row.attempt_token): row for row in open_jobs}
    return [(each, found[each.fencing]) for each in successes if each.fencing in found]


def _check_quotas(session: Session, held: Sequence[Held]) -> None:
    own_limits = {job.tenant_id: job.artifact_bytes for _, job in held}
    for tenant_id in sorted(id for id, own in own_limits.items() if limit_of(own)):
        more = sum(output.bytes for each, job in held if job.tenant_id == tenant_id for output in each.outputs)
        check_quota(session, tenant_id, more, is_kept=True)


def _moves(success: Success, job: Row[Any], outputs: Mapping[str, str]) -> list[JobMove]:
    """Return what has happened to a job that has succeeded, since it was read (pure)."""
    moves = list[JobMove]()
    if (begun := _begun_now(success, job)) is not None:
        begun_by = {"tiles": job.attempt_tiles, "worker": job.attempt_worker, "node": job.attempt_node}
        moves.append(JobMove(JobEvent.START, begun.at, data=begun_by))
    columns = {"outputs": outputs, "result": dict(success.result or {}), "not_before": None, "error": None}
    outcome = {"outcome": str(AttemptOutcome.SUCCEEDED)}
    return [*moves, JobMove(JobEvent.SUCCEED, success.at, JobReason.COMPLETED, outcome, columns)]


def _begun_now(success: Success, job: Row[Any]) -> Begun | None:
    return success.begun if job.attempt_started_at is None else None


def _end_attempts(session: Session, held: Sequence[Held]) -> None:
    rows = []
    for each, job in held:
        begun = _begun_now(each, job)
        rows.append(
            {
                "ended_id": job.attempt_id,
                "ended_at": each.at,
                "outcome": str(AttemptOutcome.SUCCEEDED),
                "started_at": job.attempt_started_at if begun is None else begun.at,
                "box": job.attempt_box if begun is None else dict(begun.box),
                "spans": None if each.spans is None else [dict(span) for span in each.spans],
            }
        )
    if rows:
        session.connection().execute(_END_SUCCEEDED, rows)


def _add_artifacts(session: Session, held: Sequence[Held]) -> list[dict[str, str]]:
    """Add what jobs have made. Returns of each the artifacts by their slots."""
    artifacts, lineage, ids = list[dict[str, object]](), list[dict[str, object]](), list[dict[str, str]]()
    for success, job in held:
        ids.append({output.slot: new_id("art") for output in success.outputs})
        for output in success.outputs:
            id = ids[-1][output.slot]
            artifacts.append(
                {
                    "id": id,
                    "tenant_id": job.tenant_id,
                    "name": f"{job.name} {output.slot}",
                    "kind": output.kind,
                    "digest": output.digest,
                    "bytes": output.bytes,
                    "is_folder": output.is_folder,
                    "file_name": output.file_name,
                    "job_id": job.id,
                    "slot": output.slot,
                    "created_at": success.at,
                }
            )
            parents = job.inputs.items()
            lineage += [{"child": id, "parent": of, "slot": slot, "job_id": job.id} for slot, of in parents]
    for statement, rows in ((_ADD_ARTIFACTS, artifacts), (_ADD_LINEAGE, lineage)):
        if rows:
            session.connection().execute(statement, rows)
    return ids
