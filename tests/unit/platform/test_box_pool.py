"""Boxes that wait for their tenant's next job: which one gets it, and which ones end."""

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import pytest

from rdukit.box.client import BoxClient
from rdukit.errors import BackendUnavailable
from rdukit_platform.backends.contract import BoxLimits, BoxOwner, BoxSpec, BoxStats, OwnedBox, RunningBox
from rdukit_platform.backends.job_boxes import BoxRules
from rdukit_platform.backends.process import ProcessBackend, ProcessBox
from rdukit_platform.db.models import JobRow
from rdukit_platform.worker.pool import (
    MAX_GROWTH_BYTES,
    MAX_JOBS,
    BoxPool,
    BoxShelf,
    PooledBox,
    clear_pools,
    lock_of,
    may_stay,
)
from support import FakeClock, shows

pytestmark = shows("job-boxes")

OWN, OTHER = ("ten-1", "logreg"), ("ten-2", "logreg")


class Box:
    """What a pool asks of a box."""

    rest_url = "http+unix://%2Fnowhere"

    def __init__(self) -> None:
        self.is_running = True

    def is_alive(self) -> bool:
        return self.is_running

    def stats(self) -> BoxStats:
        return BoxStats(cpu_s=0.0, memory_bytes=1, pids=1)

    def stop(self, grace_s: float = 10.0) -> None:
        self.is_running = False


def waiting(key: tuple[str, str], since: float) -> PooledBox:
    return PooledBox(key, Path("none"), cast(RunningBox, Box()), cast(BoxClient, None), None, idle_since=since)


@pytest.mark.parametrize(
    ("jobs", "first", "now", "stays"),
    [
        (1, None, None, True),
        (MAX_JOBS - 1, 100, 100 + MAX_GROWTH_BYTES, True),
        (MAX_JOBS, 100, 100, False),
        (21, 100, 101 + MAX_GROWTH_BYTES, False),
        (21, 100, None, True),
    ],
)
def test_a_box_stays_until_it_has_done_enough_or_grown(
    jobs: int, first: int | None, now: int | None, stays: bool
) -> None:
    assert may_stay(jobs, first, now) is stays


def test_a_job_gets_the_box_of_its_tenant_that_was_used_last() -> None:
    shelf = BoxShelf()
    older, newer, other = waiting(OWN, 1.0), waiting(OWN, 2.0), waiting(OTHER, 3.0)
    for box in (older, newer, other):
        shelf.put(box)
    assert [shelf.take(OWN) for _ in range(3)] == [newer, older, None]
    assert shelf.take(("ten-2", "lenet")) is None
    assert shelf.take(OTHER) is other


def test_those_that_wait_too_long_are_too_many_or_have_ended_go() -> None:
    shelf = BoxShelf()
    boxes = [waiting(OWN if number % 2 else OTHER, float(number)) for number in range(6)]
    for box in boxes:
        shelf.put(box)
    assert shelf.take_old(before=1.0, most=4, ended={id(boxes[5])}) == [boxes[0], boxes[1], boxes[5]]
    assert shelf.take_old(before=1.0, most=4) == []
    assert shelf.take_old(before=float("inf"), most=4) == [boxes[2], boxes[3], boxes[4]]


def test_only_jobs_that_leave_nothing_to_go_on_with_are_taken(tmp_path: Path) -> None:
    plain = JobRow(verb="preprocess", tiles=0, members=1, box_version=None)
    with pool_of(tmp_path) as pool:
        assert pool.takes(plain)
        others = {"verb": "train", "tiles": 1, "members": 2, "box_version": 1}
        for name, value in others.items():
            job = JobRow(verb="preprocess", tiles=0, members=1, box_version=None)
            setattr(job, name, value)
            assert not pool.takes(job), name
    with pool_of(tmp_path, idle_s=0.0) as closed:
        assert not closed.takes(plain)


class WatchedClock(FakeClock):
    """Notes when it is looked at, as a pool's sweeper does at the start of each sweep."""

    def __init__(self) -> None:
        super().__init__()
        self.looks = threading.Semaphore(0)

    def monotonic(self) -> float:
        self.looks.release()
        return super().monotonic()

    def await_sweep(self) -> None:
        """Wait until a sweep that begins now has ended: the next one begins after it."""
        while self.looks.acquire(blocking=False):
            pass
        for _ in range(2):
            assert self.looks.acquire(timeout=60)


def pool_of(folder: Path, idle_s: float = 60.0, clock: FakeClock | None = None) -> BoxPool:
    clock = clock or FakeClock()
    return BoxPool(Starting(records=folder), BoxRules(BoxLimits()), folder / "pools", clock, idle_s, 2)


class Starting(ProcessBackend):
    """Starts such boxes."""

    def start(self, spec: BoxSpec, timeout_s: float = 30.0, stop: threading.Event | None = None) -> ProcessBox:
        return cast(ProcessBox, Box())


def test_a_box_of_the_pool_is_lent_once_and_its_folder_goes_with_it(tmp_path: Path) -> None:
    with pool_of(tmp_path) as pool:
        first, second = (pool.lend(*OWN, None, 1.0, threading.Event()) for _ in range(2))
        assert first is not second
        incoming, output = first.make_room("job-1")
        assert output.is_dir() and not incoming.exists()
        first.clear("job-1")
        pool.give_back(first)
        assert pool.lend(*OTHER, None, 1.0, threading.Event()) is not first
        assert pool.lend(*OWN, None, 1.0, threading.Event()) is first
        pool.give_back(first)
        pool.end(second)
        assert first.folder.is_dir() and not second.folder.exists()
        first.box.stop()
        assert pool.lend(*OWN, None, 1.0, threading.Event()) is not first
        assert not first.folder.exists()
    assert list((tmp_path / "pools").iterdir()) == []


class Engine(Starting):
    """Has such containers, by their owner's id."""

    name = "docker"

    def __init__(self, records: Path, *owners: str) -> None:
        super().__init__(records=records)
        self.there = list(owners)

    def owned(self) -> Sequence[OwnedBox]:
        return [OwnedBox(f"of-{owner}", "logreg", BoxOwner(owner, 1)) for owner in self.there]

    def reap(self, orphan: OwnedBox) -> None:
        self.there.remove(orphan.owner.id)


def test_what_a_killed_worker_left_is_ended_and_what_others_have_is_not(tmp_path: Path) -> None:
    pools = tmp_path / "pools"
    with BoxPool(Engine(tmp_path), BoxRules(BoxLimits()), pools, FakeClock(), 60.0, 2) as living:
        own = living.lend(*OWN, None, 1.0, threading.Event()).folder.parent.name
        (pools / "pool-killed" / "1" / "in").mkdir(parents=True)
        lock_of(pools / "pool-killed").touch()
        # Of another platform with the same engine nothing is known here.
        engine = Engine(tmp_path, own, "pool-killed", "pool-elsewhere", "job-1")
        assert clear_pools(engine, pools) == 1
        assert engine.there == [own, "pool-elsewhere", "job-1"]
        assert clear_pools(engine, pools) == 0
        assert {path.name for path in pools.iterdir()} == {own, f"{own}.lock"}


def test_an_engine_that_is_away_costs_no_box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pool_of(tmp_path) as pool:
        lent = pool.lend(*OWN, None, 1.0, threading.Event())
        pool.give_back(lent)
        with monkeypatch.context() as away:
            away.setattr(Box, "is_alive", _fail)
            with pytest.raises(BackendUnavailable):
                pool.lend(*OWN, None, 1.0, threading.Event())
        assert pool.lend(*OWN, None, 1.0, threading.Event()) is lent
        pool.end(lent)


def test_a_box_whose_engine_is_away_is_ended_later_by_its_pool_or_as_a_dead_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rdukit_platform.worker.pool.SWEEP_S", 0.01)
    pools, clock = tmp_path / "pools", WatchedClock()
    with pool_of(tmp_path, clock=clock) as pool:
        lent = pool.lend(*OWN, None, 1.0, threading.Event())
        with monkeypatch.context() as away:
            away.setattr(Box, "stop", _fail)
            pool.end(lent)
            assert lent.folder.is_dir() and lent.box.is_alive()
        clock.await_sweep()
        assert not lent.folder.exists() and not lent.box.is_alive()
        again = pool.lend(*OWN, None, 1.0, threading.Event())
        name = again.folder.parent.name
        monkeypatch.setattr(Box, "stop", _fail)
        pool.give_back(again)
    assert [path.name for path in pools.iterdir()] == [name], "whoever clears pools finds it"
    engine = Engine(tmp_path, name)
    assert (clear_pools(engine, pools), engine.there, list(pools.iterdir())) == (1, [], [])


def _fail(*_: object) -> bool:
    raise BackendUnavailable("it is restarted")
