"""Jobs in a database, and what a worker shares."""

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rdukit.errors import RdukitError
from rdukit.interfaces import Clock, SystemClock
from rdukit_platform.artifacts.stores.folder import FolderStore
from rdukit_platform.audit.writer import AuditWriter
from rdukit_platform.backends.contract import BoxBackend, BoxLimits, BoxOwner, BoxSpec, OwnedBox, RunningBox
from rdukit_platform.backends.job_boxes import BoxRules
from rdukit_platform.db.engine import Database
from rdukit_platform.db.models import JobRow, NodeRow
from rdukit_platform.jobs import service
from rdukit_platform.jobs.broker import Notifier
from rdukit_platform.jobs.schemas import JobRequest
from rdukit_platform.settings import Home
from rdukit_platform.worker.context import WorkerContext
from rdukit_platform.worker.heartbeat import LeaseHeartbeat
from rdukit_platform.worker.walls import TenantFences, WallKind, Walls
from support.platform.processes import counter_boxes

BOXES = counter_boxes()
BOX = {"backend": "process", "id": "42", "limits": {}}


def request(**body: object) -> JobRequest:
    """Return what asks for a job."""
    return JobRequest.model_validate({"box": "counter", "verb": "preprocess", **body})


def batch(database: Database, tenant: str, *requests: JobRequest, now: float = 1.0) -> list[str]:
    """Submit jobs at once. Returns their ids."""
    with database.write() as session:
        return service.submit_jobs(session, BOXES, tenant, requests, now, "ada")


def facts(database: Database, job_id: str) -> tuple[Mapping[str, Any], list[Mapping[str, Any]]]:
    """Return a job's columns and its events, but for what names them."""
    with database.read() as session:
        row = session.get_one(JobRow, job_id)
        names = {column.name for column in row.__table__.columns} - {"id", "traceparent"}
        columns = {name: getattr(row, name) for name in names}
        return columns, [{"kind": e.kind, "at": e.at, **e.data} for e in service.list_events(session, job_id)]


def node_up(database: Database, name: str = "n1", state: str = "up") -> None:
    """Add a node."""
    with database.write() as session:
        row = NodeRow(
            name=name, home_id="h", host="h", state=state, labels={}, leased=[], report={}, beats=1, beat_at=0.0,
            joined_at=0.0, changed_at=0.0,
        )  # fmt: skip
        session.add(row)


class Refusing:
    """A backend that starts nothing."""

    name = "refusing"

    def __init__(self, error: RdukitError) -> None:
        self.error = error
        #: What was to be started, and the files of its folder with their rights.
        self.specs: list[BoxSpec] = []
        self.files: dict[str, int] = {}

    def start(self, spec: BoxSpec, timeout_s: float = 30.0, stop: threading.Event | None = None) -> RunningBox:
        self.specs.append(spec)
        if spec.folder is not None:
            self.files = {path.name: path.stat().st_mode & 0o777 for path in spec.folder.iterdir()}
        raise self.error

    def owned(self) -> tuple[OwnedBox, ...]:
        return ()

    def orphans(self, owner: BoxOwner) -> tuple[OwnedBox, ...]:
        return ()

    def reap(self, orphan: OwnedBox) -> None:
        raise AssertionError("there is nothing to reap")

    def close(self) -> None:
        pass


def worker_context(folder: Path, database: Database, backend: BoxBackend, clock: Clock | None = None) -> WorkerContext:
    """Return what all in a worker of the node ``one`` share, without a broker."""
    clock = clock or SystemClock()
    return WorkerContext(
        home=Home(folder), database=database, store=FolderStore(folder / "artifacts"),
        heartbeat=LeaseHeartbeat(database, clock, "w", 1, 5.0), notifier=Notifier(f"redis+socket://{folder}/none.sock"),
        clock=clock, name="w", node="one", backend=backend, rules=BoxRules(BoxLimits()), box_start_s=1.0,
        fences=TenantFences(Home(folder), Walls(WallKind.CONTAINER), range(0)),
        backoff_s=1.0, audit=AuditWriter(database, SystemClock()),
    )  # fmt: skip
