"""Contract of every way to run a box: one class of tests that each backend's tests inherit.

They start few boxes, since starting one is what takes time: one that most look at, and one that ends.
"""

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar, Final

import httpx
import pytest

from rdukit.errors import Cancelled, Unavailable
from rdukit_platform.backends.contract import BoxBackend, BoxEventKind, BoxLimits, BoxOwner, BoxSpec, RunningBox
from support import wait_until

START_S: Final = 120.0
OWNER: Final = "contract-test"


@contextmanager
def contract_box(backend: BoxBackend, folder: Path, memory_bytes: int = 4 << 30) -> Iterator[RunningBox]:
    """Yield the box that the contract looks at, limited to one core and ``memory_bytes``; ended after."""
    core = min(os.sched_getaffinity(0))
    mount = folder / "readable"
    mount.mkdir()
    (mount / "note").write_text("for the box")
    limits = BoxLimits(cores=(core,), memory_bytes=memory_bytes, pids=200)
    spec = BoxSpec("logreg", folder / "one", [mount], limits=limits, owner=BoxOwner(OWNER, 1), ends_with_parent=False)
    box = backend.start(spec, START_S)
    try:
        yield box
    finally:
        box.stop()


class BackendContract:
    """Tests with fixtures of class scope: ``backend``; ``folder`` for its boxes; ``running``, a ``contract_box``."""

    #: Where boxes listen; None: each has an address of its own.
    HOST: ClassVar[str | None] = "127.0.0.1"

    def test_a_started_box_is_ready_and_answers(self, running: RunningBox) -> None:
        assert running.is_alive() and running.is_ready()
        described = httpx.get(f"{running.rest_url}/v1/describe", timeout=30)
        assert described.json()["name"] == "logreg"
        host, _, port = running.grpc_address.rpartition(":")
        assert host == (self.HOST or httpx.URL(running.rest_url).host) and int(port) > 0

    def test_a_box_has_started_before_it_is_ready(self, running: RunningBox) -> None:
        first, second, *more = running.events()
        assert (first.kind, second.kind, more) == (BoxEventKind.STARTED, BoxEventKind.READY, [])
        assert first.time <= second.time <= time.time() + 1

    def test_a_box_uses_time_memory_and_threads(self, running: RunningBox) -> None:
        stats = running.stats()
        assert stats.cpu_s > 0.1
        assert 10 << 20 < stats.memory_bytes < 4 << 30
        assert 1 <= stats.pids <= 200

    def test_every_limit_that_was_asked_for_is_told(self, running: RunningBox) -> None:
        assert set(running.limits) == {"cores", "memory", "pids"}
        assert running.limits["cores"].startswith("applied") and running.limits["memory"].startswith("applied")
        assert all(told.startswith(("applied", "not applied: ")) for told in running.limits.values())

    def test_this_epochs_boxes_and_those_of_others_are_no_orphans(
        self, backend: BoxBackend, running: RunningBox
    ) -> None:
        assert running.is_alive()
        assert not backend.orphans(BoxOwner(OWNER, 1))
        assert not backend.orphans(BoxOwner("somebody-else", 9))

    def test_a_box_with_an_owner_is_listed_whoever_asks(self, backend: BoxBackend, running: RunningBox) -> None:
        assert running.is_alive()
        assert [(found.box, found.owner) for found in backend.owned() if found.owner.id == OWNER] == [
            ("logreg", BoxOwner(OWNER, 1))
        ]

    def test_a_start_that_is_not_wanted_any_more_leaves_nothing(self, backend: BoxBackend, folder: Path) -> None:
        stop = threading.Event()
        stop.set()
        with pytest.raises(Cancelled, match="before it was ready"):
            backend.start(BoxSpec("logreg", folder / "four", owner=BoxOwner("unwanted", 1)), START_S, stop)
        assert not backend.orphans(BoxOwner("unwanted", 2))

    def test_a_boxs_log_is_followed_and_is_all_that_is_left_of_it(self, backend: BoxBackend, folder: Path) -> None:
        # The interpreter itself writes to the log then; a box has little to say.
        talking = {"PYTHONPROFILEIMPORTTIME": "1"}
        box = backend.start(BoxSpec("logreg", folder / "two", environment=talking), START_S)
        assert next(iter(box.follow())) in box.logs(), "lines come while it runs"
        box.terminate()
        wait_until(lambda: not box.is_alive(), 120)
        box.stop()
        lines = list(box.follow())
        assert not box.is_alive() and not box.is_ready()
        assert "\n".join(lines).strip() == box.logs().strip()
        assert box.logs(tail=2).splitlines() == box.logs().splitlines()[-2:]
        box.stop()
        with pytest.raises(Unavailable):
            box.stats()
        with pytest.raises(httpx.HTTPError):
            httpx.get(f"{box.rest_url}/v1/describe", timeout=5).raise_for_status()
        assert box.events()[-1].kind is BoxEventKind.ENDED

    def test_a_box_that_does_not_exist_is_told_with_its_last_words(self, backend: BoxBackend, folder: Path) -> None:
        with pytest.raises(Unavailable, match=r"(?s)ended with status 3.*no-such-box"):
            backend.start(BoxSpec("no-such-box", folder / "three", owner=BoxOwner(OWNER, 1)), START_S)
        assert not [orphan for orphan in backend.orphans(BoxOwner(OWNER, 2)) if orphan.box == "no-such-box"]

    def test_the_boxes_of_an_earlier_epoch_are_found_and_reaped(self, backend: BoxBackend, running: RunningBox) -> None:
        """Last, since it ends the box that the others look at."""
        now = BoxOwner(OWNER, 2)
        (orphan,) = backend.orphans(now)
        assert (orphan.box, orphan.owner) == ("logreg", BoxOwner(OWNER, 1))
        backend.reap(orphan)
        assert not backend.orphans(now)
        wait_until(lambda: not running.is_alive())
        backend.reap(orphan)
