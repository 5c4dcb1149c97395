"""Which boxes outlived their attempts, and what a job's box is started with."""

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from sqlalchemy.orm import Session

from rdukit.errors import InvalidArgument, Unavailable
from rdukit.settings import resolve
from rdukit_platform.backends.contract import (
    BoxLimits,
    BoxOwner,
    BoxSpec,
    OwnedBox,
    RunningBox,
    last_lines,
)
from rdukit_platform.backends.job_boxes import BACKENDS, BoxRules, open_backend, spec_of
from rdukit_platform.db.engine import Database
from rdukit_platform.db.models import JobRow
from rdukit_platform.jobs import execution, service
from rdukit_platform.jobs.schemas import JobRequest
from rdukit_platform.settings import BOX_BACKEND, Home
from rdukit_platform.tenants.service import create_tenant
from rdukit_platform.worker.orphans import (
    choose_orphans,
    clear_folders,
    read_open_attempts,
    reap_earlier,
    reap_orphans,
)
from support import shows
from support.platform.processes import counter_boxes, fresh_database

pytestmark = shows("job-boxes")


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


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with fresh_database(tmp_path) as opened:
        yield opened


def admitted_job(database: Database) -> str:
    """A job whose first attempt is open."""
    with database.write() as session:
        tenant = create_tenant(session, "lab", 0.0).id
        job = service.submit_job(session, counter_boxes(), tenant, JobRequest(box="counter", verb="preprocess"), 1.0)
        execution.admit(session, job.id, 2.0)
        return job.id


def cancel(session: Session, job_id: str) -> None:
    """Its attempt has ended then, whether or not its worker knows."""
    service.cancel_job(session, session.get_one(JobRow, job_id), 3.0)


def test_a_box_whose_attempt_is_over_is_left_behind_and_no_other() -> None:
    boxes = [
        OwnedBox("x", "b", owner)
        for owner in (BoxOwner("a", 1), BoxOwner("a", 2), BoxOwner("done", 1), BoxOwner("other", 1))
    ]
    assert choose_orphans(boxes, {"a": [2], "done": []}) == [boxes[0], boxes[2]]


def test_an_attempt_is_open_until_it_has_ended_whoever_ended_it(database: Database) -> None:
    job_id = admitted_job(database)
    asked = {job_id, "job-of-another-platform"}
    assert read_open_attempts(database, asked) == {job_id: [1]}
    with database.write() as session:
        cancel(session, job_id)
    assert read_open_attempts(database, asked) == {job_id: []}


def test_boxes_of_ended_attempts_are_ended_and_those_of_others_are_left(database: Database) -> None:
    job_id = admitted_job(database)
    backend = Boxes(BoxOwner(job_id, 1), BoxOwner("job-of-another-platform", 1))
    assert reap_orphans(backend, database) == 0
    with database.write() as session:
        cancel(session, job_id)
    assert reap_orphans(backend, database) == 1
    assert [box.owner.id for box in backend.owned()] == ["job-of-another-platform"]


def test_an_attempt_goes_on_only_when_the_boxes_before_it_have_gone() -> None:
    backend = Boxes(BoxOwner("a", 1), BoxOwner("a", 2), BoxOwner("a", 3), BoxOwner("b", 1))
    reap_earlier(backend, BoxOwner("a", 3))
    assert {box.owner for box in backend.owned()} == {BoxOwner("a", 3), BoxOwner("b", 1)}
    with pytest.raises(Unavailable, match=r"box a/3 of attempt 3 of job a does not end"):
        reap_earlier(Boxes(BoxOwner("a", 3), undying=True), BoxOwner("a", 4), wait_s=0.0)


def test_a_jobs_box_reads_its_inputs_writes_its_output_and_belongs_to_its_attempt() -> None:
    rules = BoxRules(BoxLimits(pids=9), {"RDUKIT_CHECK": "1", "A": "worker's"}, "boxes/{box}:1")
    work = Path("/work/job")
    spec = spec_of(
        rules, "logreg", BoxOwner("job", 2), work / "2", work / "in", work / "out", {"A": "job's"}, [Path("/s")], [7]
    )
    assert (spec.mounts, spec.outputs, spec.state) == ([work / "in"], [work / "out"], work / "2")
    assert (spec.owner, spec.limits.pids, spec.image) == (BoxOwner("job", 2), 9, "boxes/logreg:1")
    assert (spec.environment, spec.sockets, spec.descriptors) == (
        {"RDUKIT_CHECK": "1", "A": "job's"}, [Path("/s")], [7]
    )  # fmt: skip
    shared = spec_of(BoxRules(BoxLimits()), "logreg", BoxOwner("job", 1), work, work, work, {})
    assert shared.image is None, "the backend's image has all boxes"


def test_every_backend_is_found_by_its_name_and_no_other() -> None:
    assert tuple(BACKENDS) == BOX_BACKEND.legal
    for name, backend in BACKENDS.items():
        assert backend.name == name  # type: ignore[attr-defined]
    with pytest.raises(InvalidArgument, match=r"'vm' is not valid for worker.box_backend; expected .*kubernetes"):
        resolve(BOX_BACKEND, "vm")


def test_an_image_without_containers_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RDUKIT_WORKER_BOX_IMAGE", "boxes:1")
    with pytest.raises(InvalidArgument, match=r"boxes are processes; also set worker\.box_backend"):
        open_backend(Home(tmp_path))


@pytest.mark.parametrize(("tail", "expected"), [(None, "a\nb\nc"), (2, "b\nc"), (0, ""), (9, "a\nb\nc")])
def test_the_last_lines_of_a_log(tail: int | None, expected: str) -> None:
    assert last_lines("a\nb\nc", tail) == expected


def test_folders_of_ended_jobs_are_removed_and_all_others_stay(database: Database, tmp_path: Path) -> None:
    job_id = admitted_job(database)
    work = tmp_path / "work"
    assert clear_folders(work, database) == 0
    for name in (job_id, "job-of-another-platform"):
        (work / name).mkdir(parents=True)
    assert clear_folders(work, database) == 0
    with database.write() as session:
        cancel(session, job_id)
    assert clear_folders(work, database) == 1
    assert [path.name for path in work.iterdir()] == ["job-of-another-platform"]
