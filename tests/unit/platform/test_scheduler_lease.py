"""The lease of the scheduler: who may take it, when, and what becomes of who has lost it."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import select

from rdukit.errors import LeaseLost
from rdukit_platform.db.engine import Database
from rdukit_platform.db.models import SchedulerLeaseRow, ServiceRow
from rdukit_platform.scheduler import lease as lease_module
from rdukit_platform.scheduler.lease import NAME, LeaseHolder, SchedulerLease, may_take, read_holder
from rdukit_platform.services import beat_service, live_services
from support import FakeClock, shows
from support.platform.processes import fresh_database

pytestmark = shows("scheduler", "several-schedulers")

LEASE_S = 5.0
HERE, THERE = "boot-1/pid:[1]", "boot-2/pid:[1]"


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with fresh_database(tmp_path) as opened:
        yield opened


@pytest.mark.parametrize(
    ("holder", "is_silent", "running", "taken"),
    [
        (LeaseHolder("", "", 0, 0), False, set(), True),
        (LeaseHolder("scheduler@a:7", HERE, 1, 3), False, {7}, False),
        (LeaseHolder("scheduler@a:7", HERE, 1, 3), True, {7}, True),
        (LeaseHolder("scheduler@a:7", HERE, 1, 3), False, set(), True),
        # Whether a process elsewhere runs cannot be seen.
        (LeaseHolder("scheduler@a:7", THERE, 1, 3), False, set(), False),
        (LeaseHolder("scheduler@a:9", HERE, 1, 3), False, {9}, True),
        (LeaseHolder("scheduler@a:9", THERE, 1, 3), False, {9}, False),
    ],
    ids=["nobody", "alive", "silent", "gone", "elsewhere", "own-predecessor", "same-pid-elsewhere"],
)
def test_a_lease_is_taken_from_the_silent_and_the_dead(
    holder: LeaseHolder, is_silent: bool, running: set[int], taken: bool
) -> None:
    assert may_take(holder, HERE, 9, is_silent, running.__contains__) is taken


def test_of_two_one_decides_and_a_frozen_one_writes_nothing_any_more(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_module, "is_running", lambda pid: True)
    clock, go_on = FakeClock(), threading.Event()

    def lease(service: str, pid: int) -> SchedulerLease:
        made = SchedulerLease(database, service, LEASE_S, clock)
        made._pid = pid
        return made

    first, second = lease("scheduler@a:1", 1), lease("scheduler@b:2", 2)
    assert first.wait(go_on, 0.0, lambda: None)
    fenced = database.fenced(first.check)
    with fenced.write() as session:
        beat_service(session, "of the first", "worker", 1, clock.now())
    looks: list[str] = []

    def look() -> None:
        """What happens as the second looks: the first works for three leases, then it is frozen."""
        looks.append("")
        clock.advance(LEASE_S / 8)
        if len(looks) < 24:
            first.renew()

    assert second.wait(go_on, 0.0, look)
    assert 24 + 8 - 2 <= len(looks) <= 24 + 8 + 2, "it waits for a lease after the last sign of life, and no longer"
    with database.read() as session:
        assert read_holder(session) == LeaseHolder("scheduler@b:2", second._place, 2, 0)
        assert len([each for each in live_services(session, clock.now()) if each.kind == "scheduler"]) == 2
    # It goes on in the middle of what it did: with a decision that is to be written, or in its loop.
    with pytest.raises(LeaseLost, match=r"scheduler@a:1 .* another has taken over"), fenced.write() as session:
        beat_service(session, "too late", "worker", 1, clock.now())
    with pytest.raises(LeaseLost):
        first.renew()
    first.give_back()
    with database.read() as session:
        assert set(session.scalars(select(ServiceRow.id))) == {"of the first", "scheduler@b:2"}
    second.give_back()
    with database.read() as session:
        row = session.get_one(SchedulerLeaseRow, NAME)
        assert (row.holder, row.token) == ("", 2), "the next one need not wait, and its token is another"
