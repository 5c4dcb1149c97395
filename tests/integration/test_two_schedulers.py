"""Two schedulers on one database: one decides, the other takes over when it is killed or frozen; no job runs twice."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from rdukit.errors import LeaseLost
from rdukit.interfaces import SystemClock
from rdukit_platform.db.engine import Database
from rdukit_platform.scheduler.lease import SchedulerLease
from support import FakeClock, shows, wait_until
from support.platform.database import migrated_database
from support.platform.processes import PlatformUnderTest, platform_under_test, short_folder
from support.postgres import postgres_server

pytestmark = [shows("scheduler", "jobs"), pytest.mark.long]

BOX = Path(__file__).parent / "platform_box.py"
FAST = {
    "RDUKIT_JOB_BACKOFF_S": "0.1",
    "RDUKIT_SCHEDULER_REPUBLISH_S": "1",
    "RDUKIT_SCHEDULER_LEASE_S": "2",
    "RDUKIT_WORKER_LEASE_S": "60",  # a worker on a busy machine is no matter of this test
}
#: Of each round; a platform has four slots.
JOBS = 5


class SchedulerUnderTest:
    """A second scheduler of a platform."""

    def __init__(self, platform: PlatformUnderTest, variables: dict[str, str]) -> None:
        environment = {**os.environ, **FAST, **variables, "RDUKIT_HOME": str(platform.home), "RDUKIT_LOG_LEVEL": "INFO"}
        self.has_server = "RDUKIT_DATABASE_URL" in variables
        self.log = platform.home / "logs/second.log"
        with self.log.open("wb") as log:
            command = [sys.executable, "-m", "rdukit_platform.scheduler"]
            self.process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)

    def stop(self) -> None:
        """End it, though it may be frozen."""
        self.process.send_signal(signal.SIGCONT)
        self.process.terminate()
        self.process.wait(60)


@contextmanager
def two_schedulers(variables: dict[str, str]) -> Iterator[tuple[PlatformUnderTest, SchedulerUnderTest]]:
    with short_folder() as home, platform_under_test(home, BOX, {**FAST, **variables}) as platform:
        second = SchedulerUnderTest(platform, variables)
        try:
            wait_until(lambda: len(schedulers(platform)) == 2, 60, "both are up")
            yield platform, second
        finally:
            second.stop()


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with postgres_server() as url:
        yield url


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[PlatformUnderTest, SchedulerUnderTest]]:
    if request.param == "sqlite":
        with two_schedulers({}) as both:
            yield both
        return
    url = migrated_database(request.getfixturevalue("server"), "schedulers")
    with two_schedulers({"RDUKIT_DATABASE_URL": url}) as both:
        yield both


def schedulers(platform: PlatformUnderTest) -> dict[int, bool]:
    """Return the process ids of those that beat, and whether each decides."""
    services = platform.client.get("/v1/nodes")["services"]
    return {int(each["id"].rpartition(":")[2]): each["decides"] for each in services if each["kind"] == "scheduler"}


def decides(platform: PlatformUnderTest) -> int:
    """Return the process that decides; 0: none does."""
    return next((pid for pid, is_it in schedulers(platform).items() if is_it), 0)


def submit(platform: PlatformUnderTest, dataset: str) -> list[str]:
    body = {"inputs": {"dataset": dataset}, "parameters": {"steps": 10, "step_s": 0.02}, "tiles": 1}
    return [platform.submit("train", **body)["id"] for _ in range(JOBS)]


def check_each_ran_once(platform: PlatformUnderTest, jobs: list[str]) -> None:
    for job in [platform.wait_end(job) for job in jobs]:
        assert [each["outcome"] for each in job["attempts"]] == ["succeeded"], json.dumps(job["attempts"])
        assert [platform.states(job["id"]).count(state) for state in ("starting", "succeeded")] == [1, 1]


def freeze(pid: int, home: Path, is_server: bool) -> None:
    """Stop a process; with SQLite not while it has the one lock for writing, which would hold up everybody."""
    while True:
        os.kill(pid, signal.SIGSTOP)
        if is_server:  # which ends its transaction when the lease is over
            return
        with closing(sqlite3.connect(home / "db.sqlite", timeout=1.0, isolation_level=None)) as connection:
            try:
                connection.execute("BEGIN IMMEDIATE")
                connection.execute("ROLLBACK")
                return
            except sqlite3.OperationalError:
                os.kill(pid, signal.SIGCONT)


def test_a_standby_takes_over_from_a_killed_and_from_a_frozen_scheduler(
    pair: tuple[PlatformUnderTest, SchedulerUnderTest],
) -> None:
    platform, second = pair
    dataset = platform.wait_end(platform.submit("preprocess")["id"])["outputs"]["dataset"]
    first, other = platform.pid_of("scheduler"), second.process.pid
    assert schedulers(platform) == {first: True, other: False}

    killed = submit(platform, dataset)
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: decides(platform) == other, 60, "the other one takes over")
    check_each_ran_once(platform, killed)

    wait_until(lambda: bool(set(schedulers(platform)) - {first, other}), 60, "the killed one is started again")
    (again,) = set(schedulers(platform)) - {first, other}
    frozen = submit(platform, dataset)
    freeze(other, platform.home, second.has_server)
    wait_until(lambda: decides(platform) == again, 60, "silence ends its lease")
    check_each_ran_once(platform, frozen)
    late = submit(platform, dataset)
    os.kill(other, signal.SIGCONT)
    wait_until(lambda: "decides no more" in second.log.read_text(), 60, "it notices that it is not the one any more")
    check_each_ran_once(platform, late)
    assert schedulers(platform)[other] is False, "it stands by now"


def test_a_holder_frozen_while_it_renews_its_lease_does_not_keep_the_row(
    server: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    url, clock, lease_s = migrated_database(server, "frozen"), FakeClock(), 1.0
    database = Database(url)
    request.addfinalizer(database.close)
    holder = SchedulerLease(database, "scheduler@there:1", lease_s, clock)
    standby = SchedulerLease(database, "scheduler@here:2", lease_s, SystemClock())
    assert holder.wait(threading.Event(), 0.1, lambda: None)
    clock.advance(lease_s)
    is_frozen, goes_on = threading.Event(), threading.Event()

    def freeze_holder(session: Session, service: str, *rest: object) -> None:
        if service == "scheduler@there:1":
            is_frozen.set()
            goes_on.wait(120)

    monkeypatch.setattr("rdukit_platform.scheduler.lease.is_running", lambda pid: True)
    monkeypatch.setattr("rdukit_platform.scheduler.lease.beat_service", freeze_holder)
    with ThreadPoolExecutor(2) as threads:
        renewal = threads.submit(holder.renew)
        try:
            assert is_frozen.wait(60), "the lease's row is locked"
            assert threads.submit(standby.wait, threading.Event(), 0.1, lambda: None).result(60) is True
        finally:
            goes_on.set()
        with pytest.raises(DBAPIError):
            renewal.result(60)
    with pytest.raises(LeaseLost):
        holder.renew()
