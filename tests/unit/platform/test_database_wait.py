"""Waiting for a database that starts at the same time."""

from pathlib import Path

import pytest
from sqlalchemy.exc import OperationalError

from rdukit_platform.db.engine import Database, wait_until_reachable
from support import FakeClock


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
