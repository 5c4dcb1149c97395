"""Snapshot of the database for the scheduler: the front of each tenant's queue, the active jobs, the nodes.

A pass examines only the first ``WINDOW`` queued jobs of a tenant; the others cannot be next, and cost nothing.
"""

from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Final

from sqlalchemy import BigInteger, bindparam, case, cast, func, select, update
from sqlalchemy.orm import Session, load_only

from rdukit.settings import resolve
from rdukit_platform.db.models import AttemptPartRow, AttemptRow, JobRow, NodeRow, TenantRow
from rdukit_platform.jobs.attempts import FREE_PAUSE_S
from rdukit_platform.jobs.fencing import read_parts
from rdukit_platform.jobs.states import FINAL, JobState
from rdukit_platform.jobs.tenant_use import read_served_tiles
from rdukit_platform.nodes.registry import PRESENT, NodeLife, capacity_of
from rdukit_platform.scheduler.model import (
    NO_LABELS,
    WINDOW,
    ActiveJob,
    JobPart,
    NodeState,
    PreemptionRule,
    PriorityScope,
    QueuedJob,
    QueueSnapshot,
    TenantShare,
    Wait,
)
from rdukit_platform.scheduler.settings import (
    SCHEDULER_PREEMPT_MIN_RUN_S,
    SCHEDULER_PREEMPT_MOST,
    SCHEDULER_PREEMPT_PRIORITY,
    SCHEDULER_PRIORITY_SCOPE,
    SCHEDULER_STARVE_S,
)
from rdukit_platform.scheduler.shares import PastUsage, UsagePeriod
from rdukit_platform.services import live_services
from rdukit_platform.settings import SCHEDULER_TENANT_JOBS

#: Number of half-lives after which use is forgotten, and number of time slices per half-life.
_HALF_LIVES: Final = 5
_SLICES: Final = 16
#: Longest duration in seconds of a transaction that ends an attempt.
COMMIT_S: Final = 5.0

#: Verb that resumes from a checkpoint after its attempt was ended.
KEEPING_VERB: Final = "train"
#: Columns of an active job that a decision depends on.
_OF_ACTIVE: Final = (
    JobRow.id, JobRow.tenant_id, JobRow.tiles, JobRow.members, JobRow.run_limit_s, JobRow.priority, JobRow.preemptible,
    JobRow.preemptions, JobRow.verb, JobRow.queued_at, JobRow.created_at,
)  # fmt: skip

#: Tiles of all members of a job.
_ALL_TILES: Final = JobRow.tiles * JobRow.members

_QUEUED: Final = str(JobState.QUEUED)
_OPEN: Final = [str(state) for state in JobState if state not in FINAL]


def needs_pass(session: Session) -> bool:
    """Return whether any job is open; without one a pass would change nothing."""
    return session.scalars(select(JobRow.id).where(JobRow.state.in_(_OPEN)).limit(1)).first() is not None


def read_snapshot(session: Session, now: float, usage: PastUsage | None = None) -> QueueSnapshot:
    """Return the front of the queue, the active jobs and the nodes, as values; ``usage`` as by ``UsageReader``."""
    parts = read_parts(session)
    active = session.execute(
        select(JobRow, AttemptRow)
        .options(load_only(*_OF_ACTIVE, raiseload=True))
        .join(AttemptRow, AttemptRow.job_id == JobRow.id)
        .where(AttemptRow.ended_at.is_(None))
    )
    slots: dict[str, int] = defaultdict(int)
    for service in live_services(session, now):
        slots[service.node] += service.slots
    rows = session.scalars(select(NodeRow).where(NodeRow.state.in_(PRESENT)).order_by(NodeRow.name)).all()
    up = [row for row in rows if row.state == NodeLife.UP]
    nodes = tuple(
        NodeState(
            row.name,
            capacity_of(row),
            slots[row.name],
            frozenset(row.all_labels.items()),
            is_linked=row.link_host is not None,
        )
        for row in up
    )
    # Holders of tiles in each node's last report: only their tiles are already missing from its free tiles.
    leased = {(row.name, job) for row in rows for job in row.leased}
    tenants = session.scalars(select(TenantRow)).all()
    tiles = sum(node.capacity.tiles for node in nodes if node.capacity)
    served = read_served_tiles(session)
    past = usage.shares(now, tiles, sum(node.slots for node in nodes)) if usage else {}
    return QueueSnapshot(
        now=now,
        queued=tuple(_read_front(session, now)),
        active=tuple(_show_active(job, attempt, parts.get(attempt.id, ()), leased, now) for job, attempt in active),
        nodes=nodes,
        tenant_jobs=resolve(SCHEDULER_TENANT_JOBS),
        starve_s=resolve(SCHEDULER_STARVE_S),
        has_other_tenants=len(tenants) > 1,
        absent={} if up else _count_absent(session),
        shares={
            row.id: TenantShare(
                row.weight, past.get(row.id, 0.0), row.quota, row.max_tiles, row.max_jobs, served.get(row.id, 0)
            )
            for row in tenants
        },
        preemption=PreemptionRule(
            resolve(SCHEDULER_PREEMPT_PRIORITY), resolve(SCHEDULER_PREEMPT_MIN_RUN_S), resolve(SCHEDULER_PREEMPT_MOST)
        ),
        priority_scope=PriorityScope(resolve(SCHEDULER_PRIORITY_SCOPE)),
    )


def _count_absent(session: Session) -> dict[str, int]:
    query = select(NodeRow.state, func.count()).where(NodeRow.state != str(NodeLife.UP)).group_by(NodeRow.state)
    return {str(row[0]): int(row[1]) for row in session.execute(query)}


def _show_active(
    job: JobRow, attempt: AttemptRow, others: Sequence[AttemptPartRow], leased: Container[tuple[str | None, str]],
    now: float,
) -> ActiveJob:  # fmt: skip
    def part(node: str | None, members: int) -> JobPart:
        return JobPart(node, job.tiles * members, members, (node, job.id) in leased)

    first = part(attempt.node, job.members - sum(row.members for row in others))
    return ActiveJob(
        job.id,
        job.tenant_id,
        job.tiles * job.members,
        holds_tiles=first.holds_tiles,
        node=attempt.node,
        ends_at=None if job.run_limit_s is None else (attempt.claimed_at or now) + job.run_limit_s,
        priority=job.priority,
        began=attempt.claimed_at,
        is_preemptible=job.preemptible,
        preemptions=job.preemptions,
        keeps_work=job.verb == KEEPING_VERB,
        is_leaving=attempt.pause_asked_at is not None or attempt.preempt_asked_at is not None,
        members=job.members,
        parts=(first, *(part(row.node, row.members) for row in others)) if others else (),
        since=job.created_at if job.queued_at is None else job.queued_at,
    )


def _read_front(session: Session, now: float) -> Iterator[QueuedJob]:
    """Yield the first ``WINDOW`` jobs of each tenant, by priority and age; each query follows an index."""
    # A pause longer than ``FREE_PAUSE_S`` began before the clock was set back.
    not_before = case((JobRow.not_before <= now + FREE_PAUSE_S, JobRow.not_before))
    columns = (
        JobRow.id,
        JobRow.tenant_id,
        _ALL_TILES,
        func.coalesce(JobRow.queued_at, JobRow.created_at),
        not_before,
        JobRow.waits_for,
        JobRow.priority,
        JobRow.run_limit_s,
        JobRow.wait_code,
        JobRow.estimated_start,
        JobRow.members,
        JobRow.constraint,
    )
    lines = session.execute(
        select(JobRow.tenant_id, JobRow.priority)
        .where(JobRow.state == _QUEUED)
        .distinct()
        .order_by(JobRow.tenant_id, JobRow.priority.desc())
    ).all()
    room: dict[str, int] = defaultdict(lambda: WINDOW)
    for tenant, priority in lines:
        if room[tenant] <= 0:
            continue
        rows = session.execute(
            select(*columns)
            .where(JobRow.state == _QUEUED, JobRow.tenant_id == tenant, JobRow.priority == priority)
            .order_by(JobRow.queued_at, JobRow.id)
            .limit(room[tenant])
        ).all()
        room[tenant] -= len(rows)
        for row in rows:
            asked = frozenset(row[-1].items()) if row[-1] else NO_LABELS
            yield QueuedJob(*(*row[:-1], asked))


class UsageReader:
    """Reads the tenants' past use from ended attempts: first all that still counts, then only new ones."""

    def __init__(self, half_life_s: float) -> None:
        self._half_life_s = half_life_s
        self._usage = PastUsage(half_life_s)
        #: End time up to which attempts are included.
        self._until = float("-inf")

    def read(self, session: Session, now: float) -> PastUsage:
        """Return the usage until shortly before now, because ends of attempts may not be committed yet."""
        until = now - COMMIT_S
        if until < self._until:  # the clock was set back: start over, so that nothing counts twice
            self._usage, self._until = PastUsage(self._half_life_s), float("-inf")
        if self._half_life_s > 0:
            since = max(self._until, until - _HALF_LIVES * self._half_life_s)
            for period in read_periods(session, since, until, self._half_life_s / _SLICES):
                self._usage.add(period)
        self._until = until
        return self._usage


def read_periods(session: Session, since: float, until: float, slice_s: float) -> Iterator[UsagePeriod]:
    """Yield the attempts that ended in a period, grouped by the time slices of their begin and end."""
    began, ended = AttemptRow.claimed_at, AttemptRow.ended_at
    rows = session.execute(
        select(JobRow.tenant_id, func.count(), func.sum(_ALL_TILES), func.avg(began), func.avg(ended))
        .join(JobRow, JobRow.id == AttemptRow.job_id)
        .where(ended > since, ended <= until, began.is_not(None))
        .group_by(JobRow.tenant_id, _ALL_TILES, cast(began / slice_s, BigInteger), cast(ended / slice_s, BigInteger))
    )
    for tenant, jobs, tiles, mean_began, mean_ended in rows:
        yield UsagePeriod(tenant, jobs, int(tiles), mean_began, mean_ended)


def find_news(queued: Iterable[QueuedJob], waits: Mapping[str, Wait], now: float) -> dict[str, Wait]:
    """Find the waits that differ from those the jobs have (pure).

    A start that moved by less than a twentieth of the time until then does not differ.
    """
    return {job.job_id: waits[job.job_id] for job in queued if job.job_id in waits and _is_news(job, waits, now)}


def _is_news(job: QueuedJob, waits: Mapping[str, Wait], now: float) -> bool:
    wait, before = waits[job.job_id], job.estimated_start
    if (job.waits_for, job.wait_code) != (wait.why, wait.code):
        return True
    if before is None or wait.starts_at is None:
        return before is not wait.starts_at
    return abs(before - wait.starts_at) > max(1.0, (wait.starts_at - now) / 20)


def record_waits(session: Session, waits: Mapping[str, Wait]) -> None:
    """Store wait reasons of the jobs that are still queued."""
    if waits:
        statement = (
            update(JobRow)
            .where(JobRow.id == bindparam("job"), JobRow.state == _QUEUED)
            .values(waits_for=bindparam("why"), wait_code=bindparam("code"), estimated_start=bindparam("starts_at"))
        )
        rows = [
            {"job": job_id, "why": wait.why, "code": str(wait.code), "starts_at": wait.starts_at}
            for job_id, wait in waits.items()
        ]
        session.connection().execute(statement, rows)
