"""Attempts whose box does not come up: whose failure it is."""

import threading
from pathlib import Path

import pytest

from rdukit.box_backends import BoxSpec, Limits, OwnedBox, Owner, RunningBox
from rdukit.clock import SystemClock
from rdukit.errors import BackendUnavailable, RdukitError, Unavailable
from rdukit_platform.artifacts.store import Store
from rdukit_platform.broker import Waker
from rdukit_platform.db.models import AttemptRow, JobRow
from rdukit_platform.jobs import execution, service
from rdukit_platform.jobs.schemas import JobRequest
from rdukit_platform.settings import Home
from rdukit_platform.tenants.service import create_tenant
from rdukit_platform.testing import counter_boxes, fresh_database
from rdukit_platform.worker.attempt import Attempt, Surroundings
from rdukit_platform.worker.boxes import BoxRules
from rdukit_platform.worker.hearts import Hearts


class Refusing:
    """A backend that starts nothing."""

    name = "refusing"

    def __init__(self, error: RdukitError) -> None:
        self.error = error

    def start(self, spec: BoxSpec, timeout_s: float = 30.0, stop: threading.Event | None = None) -> RunningBox:
        raise self.error

    def owned(self) -> tuple[OwnedBox, ...]:
        return ()

    def orphans(self, owner: Owner) -> tuple[OwnedBox, ...]:
        return ()

    def reap(self, orphan: OwnedBox) -> None:
        raise AssertionError("there is nothing to reap")

    def close(self) -> None:
        pass


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
            ticket = execution.admit(session, job.id, 2.0)
        around = Surroundings(
            home=Home(tmp_path), database=database, store=Store(tmp_path / "artifacts"),
            hearts=Hearts(database, SystemClock(), "w", 1, 5.0), waker=Waker(f"redis+socket://{tmp_path}/none.sock"),
            clock=SystemClock(), name="w", backend=Refusing(error), rules=BoxRules(Limits()), box_start_s=1.0,
            backoff_s=1.0,
        )  # fmt: skip
        Attempt(around, ticket, threading.Event()).run()
        with database.read() as session:
            job, attempt = session.get_one(JobRow, ticket.job_id), session.get_one(AttemptRow, ticket.attempt_id)
        assert (attempt.outcome, job.state, job.failures) == (outcome, state, failures)
        assert attempt.error is not None and attempt.error["message"] == error.message
        around.waker.close()
