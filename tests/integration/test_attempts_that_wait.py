"""Attempts that wait: for a box's answer, for its end, for an earlier box that is just ending."""

import socket
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import pytest

from rdukit.box.image import BoxEnd
from rdukit.errors import Unavailable
from rdukit_platform.backends.contract import BoxEvent, BoxEventKind, BoxOwner, BoxSpec, OwnedBox, RunningBox
from rdukit_platform.db.engine import Database
from rdukit_platform.db.models import AttemptRow, JobRow
from rdukit_platform.jobs import execution, service
from rdukit_platform.jobs.schemas import JobRequest
from rdukit_platform.tenants.service import create_tenant
from rdukit_platform.worker.attempts import phases
from rdukit_platform.worker.attempts.run import AttemptRun
from rdukit_platform.worker.orphans import reap_earlier
from support import shows
from support.platform.processes import counter_boxes, fresh_database
from support.platform.worker import Refusing, worker_context

pytestmark = shows("jobs", "job-boxes")


class Dying:
    """A box that is seen alive a few times yet, and then has been killed."""

    id, grpc_address = "dying", ""

    def __init__(self, rest_url: str) -> None:
        self.rest_url, self.limits, self.looks = rest_url, dict[str, str](), 3

    def is_alive(self) -> bool:
        self.looks -= 1
        return self.looks >= 0

    def logs(self, tail: int | None = None) -> str:
        return ""

    def events(self) -> Sequence[BoxEvent]:
        return [] if self.looks >= 0 else [BoxEvent(BoxEventKind.ENDED, 1.0, "killed", BoxEnd.KILLED)]

    def stop(self, grace_s: float = 10.0) -> None:
        pass


class Starting(Refusing):
    """A backend that has one box."""

    def __init__(self, box: Dying) -> None:
        super().__init__(Unavailable("not used"))
        self.box = box

    def start(self, spec: BoxSpec, timeout_s: float = 30.0, stop: threading.Event | None = None) -> RunningBox:
        return cast(RunningBox, self.box)


@pytest.mark.parametrize(("listens", "outcome"), [(True, "box-slow"), (False, "box-killed")])
def test_a_broken_connection_waits_for_the_boxs_end_and_a_timeout_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listens: bool, outcome: str
) -> None:
    monkeypatch.setattr(phases, "ANSWER_S", 0.2)
    with fresh_database(tmp_path) as database, socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        if listens:
            server.listen()
        with database.write() as session:
            tenant = create_tenant(session, "lab", 0.0).id
            request = JobRequest(box="counter", verb="preprocess")
            job = service.submit_job(session, counter_boxes(), tenant, request, 1.0)
            fencing = execution.admit(session, job.id, 2.0)
        box = Dying(f"http://127.0.0.1:{server.getsockname()[1]}")
        _, attempt = attempted(tmp_path, database, Starting(box), fencing)
    assert attempt.outcome == outcome


def attempted(
    folder: Path, database: Database, backend: Refusing, fencing: execution.FencingToken
) -> tuple[JobRow, AttemptRow]:
    """The job and its attempt, after a worker's try."""
    context = worker_context(folder, database, backend)
    AttemptRun(context, fencing, threading.Event()).run()
    context.notifier.close()
    with database.read() as session:
        return session.get_one(JobRow, fencing.job_id), session.get_one(AttemptRow, fencing.attempt_id)


class Boxes:
    """A backend that only knows which boxes there are. ``undying`` are reaped in vain."""

    name = "boxes"

    def __init__(self, *owners: BoxOwner, undying: bool = False) -> None:
        self.there = {
            f"{owner.id}/{owner.epoch}": OwnedBox(f"{owner.id}/{owner.epoch}", "b", owner) for owner in owners
        }
        self.undying = undying

    def start(self, spec: BoxSpec, timeout_s: float = 30.0, stop: threading.Event | None = None) -> RunningBox:
        raise AssertionError("nothing is started here")

    def owned(self) -> Sequence[OwnedBox]:
        return tuple(self.there.values())

    def orphans(self, owner: BoxOwner) -> Sequence[OwnedBox]:
        return tuple(b for b in self.owned() if b.owner.id == owner.id and b.owner.epoch < owner.epoch)

    def reap(self, orphan: OwnedBox) -> None:
        if not self.undying:
            self.there.pop(orphan.id, None)

    def close(self) -> None:
        pass


def test_an_attempt_waits_for_a_box_that_the_sweeper_is_just_ending() -> None:
    backend = Boxes(BoxOwner("a", 1), undying=True)
    sweeper = threading.Timer(0.2, backend.there.clear)
    sweeper.start()
    reap_earlier(backend, BoxOwner("a", 2))
    sweeper.join()
    assert not backend.owned()
