"""Locks that another holds: who waits for them, and for how long."""

import queue
import sys
import threading
from collections.abc import Callable, Generator, Iterable
from contextlib import closing
from pathlib import Path

from rdukit.files.locks import sole_lock
from rdukit_compiler.backend.kernel_cache import WAIT_S, KernelCache
from support import shows

pytestmark = shows("operations", "native")

PLENTY = 1 << 30


def test_a_lock_has_one_holder_and_leaves_no_file(tmp_path: Path) -> None:
    path = tmp_path / "locks" / "a"
    with sole_lock(path) as first:
        assert first
        with sole_lock(path) as second:
            assert not second
        with sole_lock(path, wait_s=0.1) as second:
            assert not second
    assert list(path.parent.iterdir()) == []
    with sole_lock(path) as again:
        assert again


def test_threads_that_fight_for_a_lock_hold_it_one_at_a_time(tmp_path: Path) -> None:
    holders: list[int] = []
    seen: list[int] = []

    def fight() -> None:
        for _ in range(20):
            with sole_lock(tmp_path / "a", wait_s=60.0) as held:
                assert held
                holders.append(1)
                seen.append(len(holders))
                holders.pop()

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=fight) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert seen == [1] * 80
    assert list(tmp_path.iterdir()) == []


def pending_of(digests: Iterable[str]) -> "queue.SimpleQueue[str]":
    made: queue.SimpleQueue[str] = queue.SimpleQueue()
    for digest in digests:
        made.put(digest)
    return made


def one_by_one(
    cache: KernelCache, digests: Iterable[str], on_found: Callable[[str, bytes], None] = lambda *_: None,
    wait_s: float = WAIT_S,
) -> Generator[str]:  # fmt: skip
    """Batches of one kernel."""
    with closing(cache.unbuilt_batches(pending_of(digests), 1, on_found, wait_s)) as batches:
        for (digest,) in batches:
            yield digest


def test_what_a_killed_process_was_building_is_built_by_who_waits(tmp_path: Path) -> None:
    mine, theirs = KernelCache(tmp_path, "v", PLENTY), KernelCache(tmp_path, "v", PLENTY)
    with mine.building(), theirs.building():
        others = one_by_one(theirs, "a")
        next(others)
        timer = threading.Timer(0.1, others.close)  # the system closes a killed process's files
        timer.start()
        assert list(one_by_one(mine, "a")) == ["a"]
        timer.join()


def test_who_has_waited_long_enough_builds_it_too(tmp_path: Path) -> None:
    mine, theirs = KernelCache(tmp_path, "v", PLENTY), KernelCache(tmp_path, "v", PLENTY)
    with mine.building(), theirs.building():
        others = one_by_one(theirs, "a")
        next(others)
        assert list(one_by_one(mine, "a", wait_s=0.1)) == ["a"]
        others.close()
