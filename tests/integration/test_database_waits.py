"""What sessions of a database wait for: the disk, a server's locks, connections that have ended."""

import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from rdukit.errors import LeaseLost
from rdukit_platform.db import engine
from rdukit_platform.db.engine import Database
from rdukit_platform.db.models import AttemptRow, JobRow
from rdukit_platform.jobs import execution, service
from rdukit_platform.jobs.attempts import AttemptOutcome
from rdukit_platform.jobs.execution import FencingToken, Output
from rdukit_platform.tenants.service import create_tenant
from support import shows, wait_until
from support.platform.database import migrated_database
from support.platform.worker import BOX, batch, facts, request
from support.postgres import new_database, postgres_server

pytestmark = shows("jobs", "scheduler")

PEF = Output("pef", "pef", "d" * 64, 10, is_folder=False)


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with postgres_server() as url:
        yield url


def test_commits_that_wait_for_the_disk_wait_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, may_go, synced = threading.Event(), threading.Event(), list[int]()

    def slow_disk(descriptor: int) -> None:
        synced.append(descriptor)
        begun.set()
        assert may_go.wait(60)

    with closing(Database(f"sqlite:///{tmp_path / 'db.sqlite'}")) as database:
        with database.write() as session:
            session.connection().exec_driver_sql("CREATE TABLE counter (n INTEGER)")
        monkeypatch.setattr(os, "fdatasync", slow_disk)

        seen = list[bool]()

        def count() -> None:
            with database.write(on_commit=lambda: seen.append(may_go.is_set())) as session:
                session.connection().exec_driver_sql("INSERT INTO counter VALUES (1)")

        threads = [threading.Thread(target=count) for _ in range(8)]
        threads[0].start()
        assert begun.wait(60)
        for thread in threads[1:]:
            thread.start()

        def committed() -> int:
            with database.read() as session:
                return int(session.connection().exec_driver_sql("SELECT count(*) FROM counter").scalar_one())

        wait_until(lambda: committed() == 8, 60)  # nobody waits for the disk to commit
        wait_until(lambda: database._log is not None and database._log._committed == 9, 60)
        assert len(synced) == 1
        may_go.set()
        for thread in threads:
            thread.join()
        assert len(synced) == 2  # the first one's, and the others' together
        assert seen == [False] * 8


def test_only_durable_commits_wait_for_the_disk_of_a_server(server: str) -> None:
    with closing(Database(new_database(server, "durable"))) as database:
        for is_durable, expected in ((False, "off"), (True, "on")):
            with database.write(is_durable=is_durable) as session:
                assert session.connection().exec_driver_sql("SHOW synchronous_commit").scalar_one() == expected


def test_a_read_of_a_server_is_no_transaction_and_a_write_is(server: str) -> None:
    with closing(Database(new_database(server, "reads"))) as database, closing(Database(f"{server}/reads")) as other:
        own, state = "SELECT pg_backend_pid()", "SELECT state FROM pg_stat_activity WHERE pid = {}"

        def state_of(session: Session) -> object:
            pid = session.connection().exec_driver_sql(own).scalar_one()
            with other.read() as reader:
                return reader.connection().exec_driver_sql(state.format(pid)).scalar_one()

        for _ in range(2):  # one connection, which is told each time what it is for
            with database.read() as session:
                assert state_of(session) == "idle"
            with database.write() as session:
                assert state_of(session) == "idle in transaction"
        assert database.engine.pool.checkedin() == 1  # type: ignore[attr-defined]


def test_connections_that_a_server_has_ended_are_made_anew(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(Database(new_database(server, "ended"))) as database:
        everybody = "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE datname = 'ended'"
        with ExitStack() as stack:
            sessions = [stack.enter_context(database.read()) for _ in range(3)]
            first = {
                session.connection().exec_driver_sql("SELECT pg_backend_pid()").scalar_one() for session in sessions
            }
        with psycopg.connect(f"{server.replace('+psycopg', '')}/postgres", autocommit=True) as connection:
            connection.execute(everybody)
        for session_of in (database.read, database.write, database.read):
            with session_of() as session:
                assert session.connection().exec_driver_sql("SELECT pg_backend_pid()").scalar_one() not in first
        pings = list[object]()
        monkeypatch.setattr(database.engine.dialect, "do_ping", lambda connection: pings.append(connection) or True)
        for idle_s, expected in ((30.0, 0), (0.0, 1)):
            monkeypatch.setattr(engine, "IDLE_S", idle_s)
            with database.read() as session:
                session.connection()
            assert len(pings) == expected


def claimed(database: Database, tenant: str) -> FencingToken:
    (job_id,) = batch(database, tenant, request())
    with database.write() as session:
        fencing = execution.admit(session, job_id, 2.0, "n1")
    with database.write() as session:
        assert execution.claim(session, fencing, "w", 5.0, 3.0, "n1") is not None
        execution.start(session, fencing, BOX, 3.0)
    return fencing


def cancel(session: Session, fencing: FencingToken) -> None:
    service.cancel_job(session, session.get_one(JobRow, fencing.job_id), 3.0)


def interrupt(session: Session, fencing: FencingToken) -> None:
    error = {"code": "unavailable", "message": "the worker was stopped"}
    execution.fail(session, fencing, AttemptOutcome.INTERRUPTED, error, 0.0, 3.0)


def pause(session: Session, fencing: FencingToken) -> None:
    service.pause_job(session, session.get_one(JobRow, fencing.job_id), 3.0)


def test_an_end_that_waits_for_another_change_of_its_job_goes_by_what_that_left(server: str) -> None:
    with closing(Database(migrated_database(server, "ends"))) as database:
        with database.write() as session:
            tenant = create_tenant(session, "lab", 0.0).id
        for change, left in ((cancel, "cancelled"), (interrupt, "retrying"), (pause, "succeeded")):
            token = claimed(database, tenant)
            with ThreadPoolExecutor(1) as threads, database.write() as session:
                change(session, token)
                session.flush()
                end = threads.submit(ends, database, token)
                wait_until(lambda: is_waiting(database))
                session.commit()
                assert end.result() == (left == "succeeded")
            assert facts(database, token.job_id)[0]["state"] == left
            assert facts(database, token.job_id)[1][-1]["to"] == left


def test_heartbeats_and_ends_wait_for_each_other_in_one_order(server: str) -> None:
    with closing(Database(migrated_database(server, "beats"))) as database:
        with database.write() as session:
            tenant = create_tenant(session, "lab", 0.0).id
        tokens = sorted((claimed(database, tenant) for _ in range(4)), key=lambda token: token.job_id)
        with database.write() as session:  # the first one's row comes last in the table
            session.get_one(AttemptRow, tokens[0].attempt_id).tiles = ["t0"]
        with ThreadPoolExecutor(1) as threads, database.write() as session:
            execution.succeed(session, tokens[0], [], {}, 5.0)
            beats = threads.submit(beat_all, database, tokens)
            wait_until(lambda: is_waiting(database))
            for token in tokens[1:]:
                execution.succeed(session, token, [], {}, 5.0)
            session.commit()
            assert beats.result() == tokens


def beat_all(database: Database, tokens: Sequence[FencingToken]) -> list[FencingToken]:
    with database.write() as session:
        return execution.beat(session, tokens, 8.0, 5.0)


def ends(database: Database, token: FencingToken) -> bool:
    """Whether the job ends with success."""
    try:
        with database.write() as session:
            execution.succeed(session, token, [PEF], {}, 5.0)
    except LeaseLost:
        return False
    return True


def is_waiting(database: Database) -> bool:
    with database.read() as session:
        locks = session.execute(text("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"))
        return bool(locks.scalar())
