"""Databases: waiting for one that starts at the same time, commits that wait for the disk or not, writers in line."""

import os
import threading
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy.exc import OperationalError

from rdukit_platform.db.engine import Database, wait_until_reachable
from support import FakeClock, shows

pytestmark = shows("jobs", "containers")


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
