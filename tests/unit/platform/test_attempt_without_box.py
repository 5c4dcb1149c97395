"""Attempts whose box does not come up or answer: whose failure it is, and which box it would have been."""

import threading
from pathlib import Path

import pytest

from rdukit.errors import BackendUnavailable, RdukitError, Unavailable
from rdukit_platform.artifacts.store import Content
from rdukit_platform.artifacts.stores.folder import FolderStore
from rdukit_platform.catalog.own import install_box
from rdukit_platform.db.engine import Database
from rdukit_platform.db.models import AttemptRow, JobRow
from rdukit_platform.jobs import execution, service
from rdukit_platform.jobs.schemas import JobRequest
from rdukit_platform.tenants.service import create_tenant
from rdukit_platform.worker.attempts.run import AttemptRun
from support import shows
from support.platform.processes import COUNTER, counter_boxes, fresh_database
from support.platform.worker import Refusing, worker_context

pytestmark = shows("jobs", "job-boxes", "modelbox-own-model", "images")


@pytest.mark.parametrize(
    ("error", "outcome", "state", "failures"),
    [
        (Unavailable("the box ended with status 3"), "box-lost", "retrying", 1),
        (BackendUnavailable("podman does not answer"), "no-resources", "queued", 0),
    ],
)
def test_a_box_that_ends_counts_against_its_job_and_an_engine_that_is_away_does_not(
    tmp_path: Path, error: RdukitError, outcome: str, state: str, failures: int
) -> None:
    with fresh_database(tmp_path) as database:
        with database.write() as session:
            tenant = create_tenant(session, "lab", 0.0).id
            job = service.submit_job(
                session, counter_boxes(), tenant, JobRequest(box="counter", verb="preprocess"), 1.0
            )
            fencing = execution.admit(session, job.id, 2.0)
        job, attempt = attempted(tmp_path, database, Refusing(error), fencing)
        assert (attempt.outcome, job.state, job.failures) == (outcome, state, failures)
        assert attempt.error is not None and attempt.error["message"] == error.message


def test_a_tenants_own_box_starts_from_a_copy_that_cannot_be_written_and_only_where_it_may(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "modelbox.yaml").write_text("of one's own")
    backend = Refusing(Unavailable("the box ended with status 3"))
    with fresh_database(tmp_path) as database:
        with database.write() as session:
            tenant = create_tenant(session, "lab", 0.0).id
            content = FolderStore(tmp_path / "artifacts").add_path(folder)
            install_box(session, counter_boxes(), tenant, {**COUNTER, "name": "mine"}, content, 1.0)
            request = JobRequest(box="mine", verb="preprocess")
            tickets = [
                execution.admit(session, service.submit_job(session, counter_boxes(), tenant, request, 1.0).id, 2.0)
                for _ in range(2)
            ]
        attempted(tmp_path, database, backend, tickets[0])
        (spec,) = backend.specs
        assert (spec.box, spec.image, backend.files) == ("mine", None, {"modelbox.yaml": 0o444})
        assert spec.folder in spec.mounts and spec.folder not in spec.outputs
        with database.write() as session:
            create_tenant(session, "other", 3.0)
        job, attempt = attempted(tmp_path, database, backend, tickets[1])
        assert (attempt.outcome, job.state, len(backend.specs)) == ("box-failed", "failed", 1)
        assert job.error is not None and job.error["code"] == "permission-denied"


@pytest.mark.parametrize(("backend_name", "starts"), [("podman", True), ("process", False)])
def test_an_image_runs_by_its_digest_and_only_as_a_container(tmp_path: Path, backend_name: str, starts: bool) -> None:
    backend = Refusing(Unavailable("the box ended with status 3"))
    backend.name = backend_name
    digest = f"sha256:{'7' * 64}"
    with fresh_database(tmp_path) as database:
        with database.write() as session:
            tenant = create_tenant(session, "lab", 0.0).id
            content = Content(digest, 0, is_folder=False)
            description = {**COUNTER, "name": "mine"}
            install_box(session, counter_boxes(), tenant, description, content, 1.0, image="registry/mine:1")
            request = JobRequest(box="mine:1", verb="preprocess")
            job = service.submit_job(session, counter_boxes(), tenant, request, 1.0)
            fencing = execution.admit(session, job.id, 2.0)
        job, attempt = attempted(tmp_path, database, backend, fencing)
    assert [(spec.box, spec.image, spec.folder) for spec in backend.specs] == [("mine", digest, None)] * starts
    assert (attempt.outcome, job.state) == (("box-lost", "retrying") if starts else ("box-failed", "failed"))
    assert starts or "but job boxes are processes here" in str(job.error)


def attempted(
    folder: Path, database: Database, backend: Refusing, fencing: execution.FencingToken
) -> tuple[JobRow, AttemptRow]:
    """The job and its attempt, after a worker's try."""
    context = worker_context(folder, database, backend)
    AttemptRun(context, fencing, threading.Event()).run()
    context.notifier.close()
    with database.read() as session:
        return session.get_one(JobRow, fencing.job_id), session.get_one(AttemptRow, fencing.attempt_id)
