"""The line of a worker: quick jobs are taken ahead and ended together, each as if it had been alone."""

import errno
import threading
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import pytest
from sqlalchemy import event, select
from sqlalchemy.orm import Session

from rdukit.errors import LeaseLost, QuotaExceeded, Unavailable
from rdukit_platform.artifacts.store import ContentLost
from rdukit_platform.db.engine import Database
from rdukit_platform.db.models import ArtifactRow, JobRow, TenantRow
from rdukit_platform.jobs import execution, service
from rdukit_platform.jobs.execution import Begun, FencingToken, Output, Success
from rdukit_platform.jobs.succession import choose_next, line_of
from rdukit_platform.tenants.service import create_tenant
from rdukit_platform.worker.line import GROUP_S, MAX_AHEAD, DoneJob, JobLine, choose_ahead
from support import FakeClock, shows
from support.platform.content import add_files
from support.platform.disk import recorded_disk
from support.platform.processes import fresh_database
from support.platform.worker import BOX, Refusing, batch, facts, node_up, request, worker_context

pytestmark = shows("jobs")


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


def test_as_many_are_taken_as_have_ended_and_as_many_again_as_were_quick() -> None:
    assert [choose_ahead(*each) for each in ((1, 0, 0), (0, 1, 0), (2, 3, 0), (0, 8, 10), (0, 3, 9))] == [1, 2, 8, 6, 0]
    assert choose_ahead(0, 1000, 1) == MAX_AHEAD - 1


def test_a_job_that_was_tried_before_takes_no_others_along() -> None:
    def job(attempt: int) -> JobRow:
        row = JobRow(tenant_id="t", priority=0, members=1, constraint={}, tiles=0, attempt=attempt)
        row.pipeline_id = row.not_before = None
        return row

    for attempts, chosen in (([0, 0, 0], 3), ([0, 1, 0], 1), ([1, 0, 0], 1), ([], 0)):
        front = [job(attempt) for attempt in attempts]
        assert len(choose_next(front, ("t", 0))) == chosen
        assert choose_next(front, ("t", 1)) == []
    assert line_of(job(0)) == ("t", 0)


def test_quick_jobs_end_together_each_as_if_it_had_been_alone(tmp_path: Path, database: Database) -> None:
    worker = LineUnderTest(tmp_path, database, 6)
    worker.end(worker.first)
    # Nothing waits in the line: its end is written, and two are taken.
    second = worker.next()
    assert second is not None and worker.states() == ["succeeded", "starting", "starting", *["queued"] * 3]
    worker.end(second)
    third = worker.next()
    assert third is not None and worker.states()[1] == "starting" and second.job_id not in worker.errors
    worker.clock.advance(2 * GROUP_S)
    worker.end(third)
    last = [token for _ in range(4) if (token := worker.next()) is not None]
    assert worker.states() == [*["succeeded"] * 3, *["starting"] * 3]
    assert [token.job_id for token in last] == worker.ids[3:] and set(worker.errors.values()) == {None}
    alone, together = (facts(database, token.job_id) for token in (worker.first, second))
    assert [event["to"] for event in together[1]] == ["submitted", "queued", "starting", "running", "succeeded"]
    assert alone[0].keys() == together[0].keys()
    different = {"outputs", "created_at", "ended_at", "started_at", "queued_at"}
    assert {name: alone[0][name] for name in alone[0].keys() - different} == {
        name: together[0][name] for name in together[0].keys() - different
    }
    with database.read() as session:
        assert all(session.get_one(JobRow, id).outputs["dataset"].startswith("art-") for id in worker.ids[:3])


def test_one_that_is_cancelled_or_too_large_keeps_no_other_from_its_end(tmp_path: Path, database: Database) -> None:
    worker = LineUnderTest(tmp_path, database, 4)
    worker.end(worker.first)
    tokens = [worker.next(), worker.next()]
    assert None not in tokens
    with database.write() as session:
        service.cancel_job(session, session.get_one(JobRow, worker.ids[1]), 1000.0)
        session.get_one(TenantRow, worker.tenant).artifact_bytes = 1000
    for token, size in zip(tokens, (10, 10), strict=True):
        assert token is not None
        worker.end(token, size=size)
    large = worker.next()
    assert large is not None and worker.states() == ["succeeded", "cancelled", "succeeded", "starting"]
    assert isinstance(worker.errors[worker.ids[1]], LeaseLost) and worker.errors[worker.ids[2]] is None
    worker.end(large, size=2000)
    assert worker.next() is None
    assert isinstance(worker.errors[worker.ids[3]], QuotaExceeded) and worker.states()[3] == "starting"


@pytest.mark.parametrize("is_whole", [False, True])
def test_the_disk_has_what_jobs_made_before_their_rows_say_so(
    tmp_path: Path, database: Database, monkeypatch: pytest.MonkeyPatch, is_whole: bool
) -> None:
    worker, commits = LineUnderTest(tmp_path, database, 5), list[tuple[int, int, bool]]()
    folder = worker.store.where
    with recorded_disk(Path(folder), monkeypatch, is_whole=is_whole) as disk:

        def note(session: Session) -> None:
            rows = session.scalars(select(ArtifactRow.digest)).all()
            blobs = {entry.digest for digest in rows for entry in worker.store.entries(digest)} | set(rows)
            named = {f"{folder}/blobs/{digest[:2]}/{digest}" for digest in blobs}
            commits.append((len(rows), disk.waits, named <= disk.named))

        event.listen(Session, "before_commit", note)
        try:
            worker.end(worker.first)
            tokens = [worker.next(), worker.next()]
            for token in tokens:
                assert token is not None
                worker.end(token)
            assert worker.next() is not None
        finally:
            event.remove(Session, "before_commit", note)
    assert [count for count, _, _ in commits] == [1, 3] and all(is_named for _, _, is_named in commits)
    assert disk.hollow == []
    if is_whole:  # however many jobs, the bytes and then the names
        assert [waits for _, waits, _ in commits] == [2, 4]


def test_a_job_whose_content_the_disk_refuses_takes_no_other_along(
    tmp_path: Path, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = LineUnderTest(tmp_path, database, 3)
    worker.end(worker.first)
    tokens = [worker.next(), worker.next()]
    incoming = Path(worker.store.where) / "incoming"
    with recorded_disk(Path(worker.store.where), monkeypatch, is_whole=False) as disk:
        for token in tokens:
            assert token is not None
            worker.end(token)
            disk.refusals = disk.refusals or {path.name: OSError(errno.EIO, "broken") for path in incoming.iterdir()}
        assert worker.next() is None
    assert worker.states() == ["succeeded", "starting", "succeeded"]
    errors = [worker.errors[id] for id in worker.ids]
    assert isinstance(errors[1], ContentLost) and (errors[0], errors[2]) == (None, None)
