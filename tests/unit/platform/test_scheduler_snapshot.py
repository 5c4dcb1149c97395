"""What the scheduler sees of a long queue, and what it writes down."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from rdukit_platform.db.engine import Database
from rdukit_platform.db.models import JobRow
from rdukit_platform.jobs import execution, service
from rdukit_platform.jobs.attempts import AttemptOutcome
from rdukit_platform.jobs.schemas import JobRequest
from rdukit_platform.jobs.states import WaitCode
from rdukit_platform.nodes.registry import NodeIdentity, beat
from rdukit_platform.scheduler import snapshot
from rdukit_platform.scheduler.model import PriorityScope, QueuedJob, TenantShare, Wait
from rdukit_platform.scheduler.snapshot import UsageReader, find_news, needs_pass, read_snapshot, record_waits
from rdukit_platform.services import beat_service
from rdukit_platform.tenants.service import create_tenant
from support import shows
from support.platform.processes import counter_boxes, fresh_database

pytestmark = shows("scheduler")

AWAY = Wait(WaitCode.WORKERS_AWAY, "no worker is up", 90.0)
REQUEST = JobRequest(box="counter", verb="preprocess")


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with fresh_database(tmp_path) as opened:
        yield opened


def submit(database: Database, tenant: str, number: int, at: float) -> list[str]:
    with database.write() as session:
        return [service.submit_job(session, counter_boxes(), tenant, REQUEST, at + index).id for index in range(number)]


def test_only_the_front_of_each_tenants_queue_is_read(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "WINDOW", 3)
    with database.write() as session:
        loud, quiet = (create_tenant(session, name, 0.0).id for name in ("loud", "quiet"))
        beat_service(session, "worker-1", "worker", 4, 100.0, node="one")
        beat(session, NodeIdentity("one", "h1", "host", {}), None, 100.0)
    flood, one = submit(database, loud, 10, 1.0), submit(database, quiet, 1, 50.0)
    with database.read() as session:
        found = read_snapshot(session, 100.0)
        assert needs_pass(session)
    assert [job.job_id for job in found.queued if job.tenant_id == loud] == flood[:3]
    assert [job.job_id for job in found.queued if job.tenant_id == quiet] == one
    assert (found.slots, found.has_other_tenants, found.active) == (4, True, ())


def test_active_jobs_are_read_with_when_they_were_queued_and_priorities_with_their_scope(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    with database.write() as session:
        tenant = create_tenant(session, "lab", 0.0).id
    (job,) = submit(database, tenant, 1, 1.0)
    with database.write() as session:
        execution.admit(session, job, 5.0)
    with database.read() as session:
        found = read_snapshot(session, 10.0)
        monkeypatch.setenv("RDUKIT_SCHEDULER_PRIORITY_SCOPE", "platform")
        changed = read_snapshot(session, 10.0)
    assert [(active.job_id, active.since) for active in found.active] == [(job, 1.0)]
    assert (found.priority_scope, changed.priority_scope) == (PriorityScope.TENANT, PriorityScope.PLATFORM)


def test_reasons_are_told_to_jobs_that_still_wait(database: Database) -> None:
    with database.write() as session:
        tenant = create_tenant(session, "lab", 0.0).id
    first, second = submit(database, tenant, 2, 1.0)
    with database.write() as session:
        execution.admit(session, first, 5.0)
        record_waits(session, {first: Wait(WaitCode.PRIORITY, "late news"), second: AWAY})
    with database.read() as session:
        found = read_snapshot(session, 100.0)
        assert [(job.job_id, job.holds_tiles) for job in found.active] == [(first, False)]
        (waiting,) = found.queued
        told = (waiting.job_id, waiting.wait_code, waiting.waits_for, waiting.estimated_start)
        assert told == (second, "PartitionDown", "no worker is up", 90.0)
        assert session.get_one(JobRow, first).waits_for is None


def test_the_front_of_a_queue_is_by_priority_and_then_by_age(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "WINDOW", 3)
    with database.write() as session:
        tenant = create_tenant(session, "lab", 0.0, weight=2.0).id
        jobs = [
            service.submit_job(
                session, counter_boxes(), tenant, REQUEST.model_copy(update={"priority": p}), float(at)
            ).id
            for at, p in enumerate([0, -1, 5, 0, 5])
        ]
    with database.read() as session:
        found = read_snapshot(session, 100.0)
    assert [job.job_id for job in found.queued] == [jobs[2], jobs[4], jobs[0]]
    assert found.shares == {tenant: TenantShare(2.0, 0.0)}


def test_an_attempt_is_expected_to_end_by_its_run_limit_from_its_claim_on(database: Database) -> None:
    with database.write() as session:
        tenant = create_tenant(session, "lab", 0.0).id
        limited = service.submit_job(
            session, counter_boxes(), tenant, REQUEST.model_copy(update={"run_limit_s": 30.0}), 1.0
        ).id
    (endless,) = submit(database, tenant, 1, 2.0)
    with database.write() as session:
        fencing = execution.admit(session, limited, 5.0)
        execution.admit(session, endless, 5.0)
    assert ends(database) == {limited: 130.0, endless: None}
    with database.write() as session:
        execution.claim(session, fencing, "worker-1", 5.0, 50.0)
    assert ends(database) == {limited: 80.0, endless: None}


def ends(database: Database) -> dict[str, float | None]:
    with database.read() as session:
        return {job.job_id: job.ends_at for job in read_snapshot(session, 100.0).active}


def use(database: Database, tenant: str, number: int, began: float, ended: float) -> None:
    for job_id in submit(database, tenant, number, 1.0):
        with database.write() as session:
            fencing = execution.admit(session, job_id, 10.0)
            execution.claim(session, fencing, "worker-1", 5.0, began)
            execution.fail(session, fencing, AttemptOutcome.INPUT_LOST, {"code": "internal"}, 1.0, ended)


def test_what_a_tenant_used_is_read_once_from_its_attempts(database: Database) -> None:
    with database.write() as session:
        tenant = create_tenant(session, "lab", 0.0).id
    use(database, tenant, 3, 100.0, 160.0)

    def shares(reader: UsageReader, now: float) -> float:
        with database.read() as session:
            return reader.read(session, now).shares(160.0, tiles=1, slots=1).get(tenant, 0.0)

    reader = UsageReader(60.0)
    assert shares(reader, 160.0) == 0.0  # not yet for sure all that ended by now
    assert shares(reader, 170.0) == shares(reader, 180.0) == pytest.approx(3 * 0.5)
    use(database, tenant, 1, 130.0, 190.0)
    grown = 3 * 0.5 + 0.5 * 2**0.5
    assert shares(reader, 200.0) == shares(UsageReader(60.0), 200.0) == pytest.approx(grown)
    assert shares(reader, 165.0) == pytest.approx(3 * 0.5)  # the clock was set back
    assert shares(reader, 200.0) == pytest.approx(grown)
    assert shares(UsageReader(60.0), 1e6) == shares(UsageReader(0.0), 200.0) == 0.0


def test_a_start_that_moves_a_little_is_no_news() -> None:
    job = QueuedJob("j", "t", 1, 0.0, None, "why", 0, None, "Resources", 1000.0)
    told = [Wait(WaitCode.RESOURCES, "why", at) for at in (1040.0, 1060.0, None)]
    told += [Wait(WaitCode.PRIORITY, "why", 1000.0), Wait(WaitCode.RESOURCES, "other", 1000.0)]
    assert [bool(find_news([job], {"j": wait}, 100.0)) for wait in told] == [False, True, True, True, True]
