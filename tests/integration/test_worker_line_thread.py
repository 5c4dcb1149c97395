"""A worker's line that ends jobs in a thread, and queues again what no slot takes and what it has when it stops."""

import threading
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import pytest

from rdukit.errors import Unavailable
from rdukit_platform.db.engine import Database
from rdukit_platform.db.models import JobRow
from rdukit_platform.jobs import execution, service
from rdukit_platform.jobs.execution import Begun, FencingToken, Output, Success
from rdukit_platform.tenants.service import create_tenant
from rdukit_platform.worker.line import GROUP_S, STALE_S, DoneJob, JobLine
from support import FakeClock, shows, wait_until
from support.platform.content import add_files
from support.platform.processes import fresh_database
from support.platform.worker import BOX, Refusing, batch, facts, node_up, request, worker_context

pytestmark = shows("jobs", "scheduler")


class LineUnderTest:
    """A worker's line over a database, with as many jobs of one tenant that wait, and one that the worker has."""

    def __init__(self, folder: Path, database: Database, jobs: int) -> None:
        self.database, self.clock, self.is_stopping = database, FakeClock(1000.0), threading.Event()
        context = worker_context(folder, database, Refusing(Unavailable("none")), self.clock)
        self.store, self.line = context.store, JobLine(context, self.is_stopping)
        with database.write() as session:
            self.tenant = create_tenant(session, "lab", 0.0).id
        node_up(database, "one")
        self.ids = sorted(batch(database, self.tenant, *(request() for _ in range(jobs)), now=990.0))
        with database.write() as session:
            self.first = execution.admit(session, self.ids[0], 991.0, "one")
            execution.claim(session, self.first, "w", 5.0, 991.0, "one")
        self.errors: dict[str, Exception | None] = {}

    def end(self, fencing: FencingToken, *, is_quick: bool = True, size: int = 10) -> None:
        """Let a slot have done a job, which made a file of its id."""
        now, added = self.clock.now(), self.store.begin()
        made = add_files(added, [("made", BytesIO(fencing.job_id.encode()))])
        output = Output("dataset", "dataset", made.digest, size, is_folder=True)
        success = Success(fencing, [output], {"samples": 3}, now, Begun(BOX, now - 0.01), [])
        self.line.end(DoneJob(success, added, is_quick, lambda error: self.errors.update({fencing.job_id: error})))

    def next(self) -> FencingToken | None:
        """Return what a free slot runs."""
        taken = self.line.next()
        return None if taken is None else taken[0]

    def states(self) -> list[str]:
        """States of all jobs, in the order of the line."""
        return [str(facts(self.database, id)[0]["state"]) for id in self.ids]


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with fresh_database(tmp_path) as opened:
        yield opened


def test_what_no_slot_takes_soon_is_queued_again_in_its_place_or_paused(tmp_path: Path, database: Database) -> None:
    worker = LineUnderTest(tmp_path, database, 4)
    worker.end(worker.first)
    assert worker.next() is not None
    worker.line.start()
    with database.write() as session:
        service.pause_job(session, session.get_one(JobRow, worker.ids[2]), 1000.0)
    worker.clock.advance(2 * STALE_S)
    wait_until(lambda: worker.states()[2] == "paused")
    assert worker.states() == ["succeeded", "starting", "paused", "queued"]
    with database.write() as session:
        service.resume_job(session, session.get_one(JobRow, worker.ids[2]), 1001.0)
        assert session.get_one(JobRow, worker.ids[2]).failures == 0
    worker.line.close()


def test_a_slow_job_takes_one_and_what_a_thread_ends_meanwhile_is_written_in_time(
    tmp_path: Path, database: Database
) -> None:
    worker = LineUnderTest(tmp_path, database, 4)
    worker.end(worker.first, is_quick=False)
    second = worker.next()
    assert second is not None and worker.states() == ["succeeded", "starting", "queued", "queued"]
    worker.line.start()
    worker.end(second)
    worker.clock.advance(2 * GROUP_S)
    wait_until(lambda: worker.states()[1] == "succeeded")
    worker.line.close()


def test_a_worker_that_stops_takes_none_and_queues_those_it_had_taken(tmp_path: Path, database: Database) -> None:
    worker = LineUnderTest(tmp_path, database, 5)
    worker.end(worker.first)
    running = worker.next()
    assert running is not None
    worker.is_stopping.set()
    worker.end(running)
    assert worker.next() is None
    assert worker.states() == ["succeeded", "succeeded", "queued", "queued", "queued"]
    assert facts(database, worker.ids[2])[0]["queued_at"] == facts(database, worker.ids[3])[0]["queued_at"]
