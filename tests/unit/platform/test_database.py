"""Databases: waiting for one that starts at the same time, commits that wait for the disk or not, writers in line."""

import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import psycopg
import pytest
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from rdukit_platform.db import engine
from rdukit_platform.db.engine import Database, wait_until_reachable
from support import FakeClock, wait_until
from support.postgres import new_database, postgres_server


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with postgres_server() as url:
        yield url


class LateClock(FakeClock):
    """At the third pause the database is there."""

    def __init__(self, obstacle: Path) -> None:
        super().__init__()
        self.obstacle, self.pauses = obstacle, 0

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        self.pauses += 1
        if self.pauses == 3:
            self.obstacle.rmdir()


def test_a_database_that_comes_late_is_waited_for(tmp_path: Path) -> None:
    (tmp_path / "db.sqlite").mkdir()
    clock = LateClock(tmp_path / "db.sqlite")
    database = Database(f"sqlite:///{tmp_path / 'db.sqlite'}")
    wait_until_reachable(database, 10.0, clock)
    assert clock.pauses == 3
    database.close()


def test_a_database_that_never_comes_is_given_up_in_time(tmp_path: Path) -> None:
    clock = FakeClock()
    began = clock.monotonic()
    with pytest.raises(OperationalError):
        wait_until_reachable(Database(f"sqlite:///{tmp_path}"), 10.0, clock)
    assert 10 <= clock.monotonic() - began < 12


def test_only_durable_commits_wait_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = list[str]()
    monkeypatch.setattr(os, "fdatasync", lambda descriptor: synced.append(os.readlink(f"/proc/self/fd/{descriptor}")))
    with closing(Database(f"sqlite:///{tmp_path / 'db.sqlite'}")) as database:
        for is_durable in (True, False, False, True):
            with database.write(is_durable=is_durable) as session:
                session.connection().exec_driver_sql("CREATE TABLE IF NOT EXISTS counter (n INTEGER)")
                normal = 1  # SQLite's number
                assert session.connection().exec_driver_sql("PRAGMA synchronous").scalar_one() == normal
    assert synced == [f"{tmp_path}/db.sqlite-wal"] * 2


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


def test_writers_of_one_process_wait_in_line(tmp_path: Path) -> None:
    with closing(Database(f"sqlite:///{tmp_path / 'db.sqlite'}")) as database:
        with database.write() as session:
            session.connection().exec_driver_sql("CREATE TABLE counter (n INTEGER)")
            session.connection().exec_driver_sql("INSERT INTO counter VALUES (0)")

        def count() -> None:
            for _ in range(20):
                with database.write(is_durable=False) as session:
                    found = session.connection().exec_driver_sql("SELECT n FROM counter").scalar_one()
                    session.connection().exec_driver_sql(f"UPDATE counter SET n = {found + 1}")

        threads = [threading.Thread(target=count) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        with database.read() as session:
            assert session.connection().exec_driver_sql("SELECT n FROM counter").scalar_one() == 160


def test_a_write_that_raised_lets_the_next_in(tmp_path: Path) -> None:
    with closing(Database(f"sqlite:///{tmp_path / 'db.sqlite'}")) as database:
        with pytest.raises(RuntimeError), database.write():
            raise RuntimeError
        with database.write() as session:
            assert session.connection().exec_driver_sql("SELECT 1").scalar_one() == 1
