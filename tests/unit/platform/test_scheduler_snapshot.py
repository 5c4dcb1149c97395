"""What the scheduler sees of a long queue, and what it writes down."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from rdukit_platform.db.engine import Database
from rdukit_platform.db.models import JobRow
from rdukit_platform.jobs import execution, service
from rdukit_platform.jobs.schemas import JobRequest
from rdukit_platform.jobs.states import WaitCode
from rdukit_platform.scheduler import snapshot
from rdukit_platform.scheduler.model import Wait
from rdukit_platform.scheduler.snapshot import needs_pass, read_snapshot, record_waits
from rdukit_platform.services import beat_service
from rdukit_platform.tenants.service import create_tenant
from support.platform.processes import counter_boxes, fresh_database

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
        beat_service(session, "worker-1", "worker", 4, 100.0)
    flood, one = submit(database, loud, 10, 1.0), submit(database, quiet, 1, 50.0)
    with database.read() as session:
        found = read_snapshot(session, None, 100.0)
        assert needs_pass(session)
    assert [job.job_id for job in found.queued if job.tenant_id == loud] == flood[:3]
    assert [job.job_id for job in found.queued if job.tenant_id == quiet] == one
    assert (found.slots, found.has_other_tenants, found.active) == (4, True, ())


def test_reasons_are_told_to_jobs_that_still_wait(database: Database) -> None:
    with database.write() as session:
        tenant = create_tenant(session, "lab", 0.0).id
    first, second = submit(database, tenant, 2, 1.0)
    with database.write() as session:
        execution.admit(session, first, 5.0)
        record_waits(session, {first: Wait(WaitCode.PRIORITY, "late news"), second: AWAY})
    with database.read() as session:
        found = read_snapshot(session, None, 100.0)
        assert [(job.job_id, job.holds_tiles) for job in found.active] == [(first, False)]
        assert {job.job_id: job.waits_for for job in found.queued} == {second: "no worker is up"}
        assert session.get_one(JobRow, first).waits_for is None
