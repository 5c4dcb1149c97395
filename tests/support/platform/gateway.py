"""A gateway in this process over a platform with jobs in every state, and callers of it.

The rows are written by the platform's own functions, as a scheduler and a worker would call them.
"""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from io import BytesIO
from math import exp, sin
from typing import Any, Final

import httpx
import uvicorn
from fastapi import FastAPI
from sqlalchemy.orm import Session

from rdukit.interfaces import Clock
from rdukit_platform.api.context import Platform, open_platform
from rdukit_platform.artifacts.service import record_artifact
from rdukit_platform.artifacts.store import BlobStore
from rdukit_platform.audit.writer import AuditWriter
from rdukit_platform.catalog.catalog import Catalog, read_catalog
from rdukit_platform.catalog.experts import get_expert, selector_of
from rdukit_platform.catalog.model import BoxDescription, Boxes, Selector, read_box
from rdukit_platform.db.engine import Database
from rdukit_platform.db.migrate import migrate
from rdukit_platform.db.models import JobRow
from rdukit_platform.endpoints import replicas
from rdukit_platform.endpoints.bundles import CheckedBundle
from rdukit_platform.endpoints.replicas import reconcile
from rdukit_platform.endpoints.service import (
    EndpointChange,
    ServedParts,
    change_endpoint,
    create_endpoint,
    get_endpoint,
)
from rdukit_platform.endpoints.states import ReplicaReason
from rdukit_platform.endpoints.usage import Use, add_use
from rdukit_platform.gateway.app import create_app, forwarding
from rdukit_platform.gateway.http_protocol import make_protocol
from rdukit_platform.jobs import execution
from rdukit_platform.jobs.attempts import AttemptOutcome
from rdukit_platform.jobs.changes import apply_event, find_open_attempt, lock_job
from rdukit_platform.jobs.experts import promote_job
from rdukit_platform.jobs.pipelines import submit_pipeline
from rdukit_platform.jobs.schemas import JobRequest, PipelineRequest, StepRequest
from rdukit_platform.jobs.service import add_jobs, cancel_job, new_job
from rdukit_platform.jobs.states import JobEvent
from rdukit_platform.settings import Home, box_command, checked_home
from rdukit_platform.sweeps.advance import advance_sweeps
from rdukit_platform.sweeps.model import SweepRequest
from rdukit_platform.sweeps.service import submit_sweep, trials_of
from rdukit_platform.tenants.service import create_tenant, find_tenant
from rdukit_platform.tenants.tokens import create_token, ensure_first_token
from support.platform.database import place_database

#: What the examples' attempts hold.
TILES = ["/NODE/XRDU_0/RDU_1/TILE_0", "/NODE/XRDU_0/RDU_1/TILE_1"]


@cache
def _read_once(*command: str) -> Boxes:
    return read_catalog(list(command))


class KnownCatalog(Catalog):
    """A catalog that asks each ModelBox command for its boxes once in this process, not once per gateway."""

    def boxes(self) -> Boxes:
        """Return all boxes."""
        return _read_once(*box_command())


def open_known_platform(home: Home) -> Platform:
    """Open a platform with the ``KnownCatalog``; nothing of it runs."""
    return replace(open_platform(home), catalog=KnownCatalog())


#: The OpenAPI document of gateways, which takes seconds to make: their routes do not depend on the platform.
_DOCUMENT: Final = dict[str, Any]()


def _known_app(platform: Platform) -> FastAPI:
    """Return a gateway's application, whose OpenAPI document is made once in this process."""
    app = create_app(platform)
    describe = app.openapi

    def openapi() -> dict[str, Any]:
        return _DOCUMENT or (_DOCUMENT.update(describe()) or _DOCUMENT)

    app.openapi = openapi  # type: ignore[method-assign]
    return app


@contextmanager
def serving(platform: Platform) -> Iterator[str]:
    """Yield the gateway at a free loopback port, as a thread of this process. Yields its address."""
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        _known_app(platform), http=make_protocol(platform), ws="none", log_config=None, access_log=False,
        timeout_graceful_shutdown=1,
        **forwarding(),
    )  # fmt: skip
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


def example_box() -> BoxDescription:
    """Return a box with two verbs that hand over a file."""
    return read_box(
        {
            "name": "logreg",
            "title": "Logistic regression",
            "description": "One linear layer and cross entropy, on images of handwritten digits.",
            "model": "logreg",
            "compiler_version": "0.1.0",
            "mode": "O3",
            "target": "sn30",
            "verbs": [
                {
                    "name": "compile",
                    "parameters": [
                        {"name": "batch_size", "type": "int", "default": 32, "legal": "one of 16, 32, 64",
                         "help": "Samples per step."},
                    ],
                    "inputs": [],
                    "outputs": [{"name": "pef", "kind": "pef"}],
                },
                {
                    "name": "train",
                    "parameters": [
                        {"name": "learning_rate", "type": "float", "default": 0.1, "legal": "0 < x <= 1",
                         "help": "Step size of SGD."},
                    ],
                    "inputs": [{"name": "pef", "kind": "pef", "required": True}],
                    "outputs": [{"name": "checkpoint", "kind": "checkpoint"}],
                },
            ],
        }
    )  # fmt: skip


class Example:
    """Fills a migrated database. Each function runs in one transaction at ``now`` seconds since the epoch."""

    def __init__(self, database: Database, store: BlobStore, tenant_id: str, now: float) -> None:
        self.database, self.store, self.tenant_id, self.now = database, store, tenant_id, now

    def fill(self) -> dict[str, str]:
        """Make one job or more in each state. Returns a job's id for each."""
        return {
            "succeeded": self.run_pipeline()[1],
            "running": self.start_training(steps=640),
            "queued": self.add(name="second opinion", waits_for="2 tiles, of which 0 are free; XRDU_0 has the next 4"),
            "submitted": self.waiting_pipeline(),
            "failed": self.end(
                AttemptOutcome.BOX_FAILED, "illegal-value", "batch_size is 33; expected one of 16, 32, 64"
            ),
            "retrying": self.end(
                AttemptOutcome.EXPIRED, "unavailable", "worker w1 has sent no heartbeat since its lease ended"
            ),
            "cancelled": self.cancel(),
        }

    def run_pipeline(self) -> tuple[str, str]:
        """Compile and train, both done. Returns the jobs' ids."""
        steps = [
            StepRequest(name="compile", box="logreg", verb="compile", parameters={"batch_size": 32}),
            StepRequest(name="train", box="logreg", verb="train", inputs={"pef": "@compile.pef"}),
        ]
        at = self.now - 3600
        with self.database.write() as session:
            request = PipelineRequest(name="handwritten digits", steps=steps, cache=False)
            _, jobs = submit_pipeline(session, Boxes({"logreg": example_box()}), self.tenant_id, request, at)
            ids = [job.id for job in jobs]
        self._succeed(ids[0], "pef", at, {"sections": 3, "mode": "O3", "projected_step_seconds": 0.000312})
        result: dict[str, object] = {
            "steps": 1250, "accuracy": 0.9145, "loss": 0.31, "host_seconds": 14.2, "emulated_seconds": 0.39,
            "emulated_cycles": 546_000_000,
        }  # fmt: skip
        self._succeed(ids[1], "checkpoint", at + 9, result, steps=1250)
        return ids[0], ids[1]

    def fan_out(self) -> tuple[str, str]:
        """Train with two learning rates on a PEF that an earlier pipeline made. Returns that job and the pipeline."""
        steps = [
            StepRequest(name="compile", box="logreg", verb="compile", parameters={"batch_size": 16}),
            StepRequest(name="train", box="logreg", verb="train", inputs={"pef": "@compile.pef"},
                        for_each={"learning_rate": [0.05, 0.2]}),
        ]  # fmt: skip
        boxes = Boxes({"logreg": example_box()})
        with self.database.write() as session:
            request = PipelineRequest(name="one compile", steps=steps[:1])
            first = submit_pipeline(session, boxes, self.tenant_id, request, self.now - 90)[1][0].id
        self._succeed(first, "pef", self.now - 89, {"sections": 3})
        with self.database.write() as session:
            request = PipelineRequest(name="two learning rates", steps=steps)
            row, jobs = submit_pipeline(session, boxes, self.tenant_id, request, self.now - 60)
            pipeline, trained = row.id, jobs[1].id
        self._succeed(trained, "checkpoint", self.now - 50, {"accuracy": 0.91}, steps=100)
        return first, pipeline

    def promote(self, job_id: str, name: str = "digits", description: str = "Reads handwritten digits.") -> str:
        """Promote a training. Returns what names the expert's version."""
        with self.database.write() as session:
            boxes = Boxes({"logreg": example_box()})
            row = promote_job(session, boxes, self.tenant_id, job_id, name, self.now, description)
            return str(selector_of(row))

    def serve(self, name: str, expert: str) -> None:
        """Make an endpoint with two revisions of an expert: a replica of the first drains, one of the second fails."""
        with self.database.write() as session:
            row = get_expert(session, self.tenant_id, expert)
            assert row.pef_id is not None
            parts = ServedParts(Selector(row.box), row.pef_id, row.checkpoint_id, row.id, 2)
            made = create_endpoint(session, self.tenant_id, name, parts, 1, self.now - 500)
            add_use(session, made.id, int(self.now // 86400), 1, Use(1204, 3, 4811, 52, 640))
        self._reconcile_ready(f"http://127.0.0.1:1/{'long/' * 30}")
        with self.database.write() as session:
            change_endpoint(
                session, get_endpoint(session, self.tenant_id, name), EndpointChange(parts, 2), self.now - 60
            )
        reconcile(self.database, self.now - 59, lambda leases: {})
        with self.database.write() as session:
            claimed = replicas.claim_next(session, "worker-1", 8.0, self.now - 58)
            assert claimed is not None
            why = "the box ended with status 3: " + "a_word_that_does_not_end_" * 12
            replicas.end(session, claimed.fencing, ReplicaReason.NOT_READY, why, self.now - 50)

    def serve_bundle(self, name: str, expert: str) -> None:
        """Make an endpoint without replicas that serves a bundle: two experts, an adapter beside one, a router."""
        content = self.store.add_stream(BytesIO(b"kind: Bundle"))
        with self.database.write() as session:
            row = get_expert(session, self.tenant_id, expert)
            assert row.pef_id is not None
            file = record_artifact(session, self.tenant_id, "bundle.yaml", "bundle", content, self.now, "bundle.yaml")
            kinds = {"poet": "expert", "coder": "expert", "clerk": "adapter", "router": "router"}
            models: list[dict[str, object]] = [
                {"name": each, "kind": kind, "aliases": [], "adapter_of": "poet" if kind == "adapter" else None}
                for each, kind in kinds.items()
            ]
            named = {"configurations.0.pef": row.pef_id, "experts.0.checkpoint": row.checkpoint_id}
            bundle = CheckedBundle(file.id, named, models, row.box, row.pef_id, 1)
            parts = ServedParts(Selector(row.box), row.pef_id, None, None, 1, bundle)
            create_endpoint(session, self.tenant_id, name, parts, 0, self.now - 500)

    def _reconcile_ready(self, address: str) -> None:
        reconcile(self.database, self.now - 499, lambda leases: {})
        with self.database.write() as session:
            claimed = replicas.claim_next(session, "worker-1", 1e9, self.now - 498)
            assert claimed is not None
            replicas.note(session, claimed.fencing, None, TILES)
            box = {"backend": "process", "id": "4243", "limits": {}}
            replicas.make_ready(session, claimed.fencing, address, None, box, self.now - 490)

    def waiting_pipeline(self) -> str:
        """Return a pipeline whose first step waits. Returns the second step's job."""
        steps = [
            StepRequest(name="compile", box="logreg", verb="compile"),
            StepRequest(name="train", box="logreg", verb="train", inputs={"pef": "@compile.pef"}),
        ]
        with self.database.write() as session:
            request = PipelineRequest(name="nightly", steps=steps)
            _, jobs = submit_pipeline(session, Boxes({"logreg": example_box()}), self.tenant_id, request, self.now - 30)
            return jobs[1].id

    def add(self, name: str, waits_for: str | None = None) -> str:
        """Return a queued job."""
        with self.database.write() as session:
            request = JobRequest(box="logreg", verb="train", name=name, parameters={"learning_rate": 0.05}, tiles=2)
            job = new_job(self.tenant_id, request, example_box(), self.now - 40)
            add_jobs(session, [job], self.now - 40)
            apply_event(session, job, JobEvent.READY, self.now - 39)
            job.waits_for = waits_for
            return job.id

    def start_training(self, steps: int) -> str:
        """Return a training job that is at work. Returns its id."""
        job_id = self.add("residual network, 5 epochs")
        fencing = self._start(job_id, self.now - 35)
        with self.database.write() as session:
            self._train(session, fencing, steps, self.now - 35)
        return job_id

    def end(self, outcome: AttemptOutcome, code: str, message: str) -> str:
        """Return a job whose attempt ended with an error. Returns its id."""
        job_id = self.add(f"{outcome} example")
        fencing = self._start(job_id, self.now - 20)
        with self.database.write() as session:
            execution.fail(session, fencing, outcome, {"code": code, "message": message}, 30.0, self.now - 12)
        return job_id

    def cancel(self) -> str:
        """Return a cancelled job. Returns its id."""
        job_id = self.add("not wanted any more")
        with self.database.write() as session:
            cancel_job(session, lock_job(session, job_id), self.now - 5)
        return job_id

    def sweep(self) -> str:
        """Let a sweep of eight trials end but for the last one. Returns its id."""
        request = SweepRequest.model_validate(
            {
                "name": "learning rates",
                "job": {"box": "logreg", "verb": "train", "tiles": 2},
                "space": {"lr": {"values": [0.001, 0.01, 0.1, 0.5]}, "schedule": {"values": ["constant", "cosine"]}},
                "objective": {"metric": "accuracy", "goal": "maximize"},
                "max_parallel": 8,
            }
        )
        with self.database.write() as session:
            row = submit_sweep(session, self.tenant_id, request, self.now - 60)
        advance_sweeps(self.database, self.now - 59)
        with self.database.read() as session:
            jobs = [job.id for _, job in trials_of(session, row.id)]
        for number, job in enumerate(jobs[:-2]):
            self._succeed(job, "checkpoint", self.now - 50 + number, {"accuracy": 0.7 + 0.03 * number}, steps=100)
        with self.database.write() as session:
            why = "loss was 2.44 at best by step 101, above 1.626, the median of 4 trials"
            cancel_job(session, lock_job(session, jobs[-2]), self.now - 9, stopped_early=why)
        advance_sweeps(self.database, self.now - 8)
        return row.id

    def advance(self, job_id: str, step: int, loss: float) -> None:
        """Record progress of a job that is at work, as its worker would report it."""
        with self.database.write() as session:
            attempt = find_open_attempt(session, lock_job(session, job_id))
            assert attempt is not None
            fencing = execution.FencingToken(job_id, attempt.id, attempt.token)
            progress = {"stage": "train", "step": step, "total": 1250, "loss": loss}
            execution.record_progress(session, fencing, progress, self.now)
            execution.record_logs(session, fencing, [f"step {step} of 1250"], self.now)

    def _succeed(self, job_id: str, slot: str, at: float, result: dict[str, object], steps: int = 0) -> None:
        fencing = self._start(job_id, at)
        content = self.store.add_manifest([])
        with self.database.write() as session:
            if steps:
                self._train(session, fencing, steps, at)
            output = execution.Output(slot, slot, content.digest, 31_400, is_folder=True)
            execution.succeed(session, fencing, [output], result, at + 8.5)

    def _start(self, job_id: str, at: float) -> execution.FencingToken:
        with self.database.write() as session:
            fencing = execution.admit(session, job_id, at)
            execution.claim(session, fencing, "worker-1", 8.0, at + 0.1)
            execution.hold_tiles(session, fencing, TILES)
            execution.start(session, fencing, {"backend": "process", "id": "4242", "limits": {}}, at + 0.9)
        return fencing

    def _train(self, session: Session, fencing: execution.FencingToken, steps: int, at: float) -> None:
        # A page or a curve needs no more points, and each takes a millisecond or two.
        every = 10 if steps <= 300 else 50
        for step in [*range(every, steps, every), steps]:
            loss = 0.28 + 2.0 * exp(-step / 130) + 0.03 * sin(step / 7)
            seconds = 8.0 * step / 1250
            progress = {"stage": "train", "step": step, "total": 1250, "loss": loss, "throughput": 41_000.0,
                        "eta_s": 8.0 - seconds}  # fmt: skip
            execution.record_progress(session, fencing, progress, at + seconds)
            if step % 250 == 0:
                line = f"step {step} of 1250: loss {loss:.4f}, checkpoint <step-{step}> written"
                execution.record_logs(session, fencing, [line], at + seconds)

    def _transact(self, change: Callable[[Session], object]) -> None:
        with self.database.write() as session:
            change(session)


def job_state(database: Database, job_id: str) -> str:
    """Return the state of a job, read now."""
    with database.read() as session:
        row = session.get(JobRow, job_id)
        assert row is not None
        return row.state


class GatewayUnderTest:
    """A gateway and those who ask it."""

    def __init__(self, url: str, platform: Platform) -> None:
        self.url, self.platform = url, platform

    @property
    def admin(self) -> str:
        """The first token."""
        return self.platform.home.token_file.read_text().strip()

    def token(self, tenant: str, *scopes: str, life_s: float | None = None) -> str:
        """Return a new token of a tenant, which is made if there is none of this name."""
        return self.id_and_token(tenant, *scopes, life_s=life_s)[1]

    def id_and_token(self, tenant: str, *scopes: str, life_s: float | None = None) -> tuple[str, str]:
        """Return a new token's id and text, as ``token``."""
        now = self.platform.clock.now()
        with self.platform.database.write() as session:
            found = find_tenant(session, tenant) or create_tenant(session, tenant, now)
            row, text = create_token(session, found.id, "t", scopes, now, None if life_s is None else now + life_s)
            return row.id, text

    def ask(self, method: str, path: str, token: str | None, **arguments: Any) -> httpx.Response:
        """Return the answer to one request."""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        headers |= arguments.pop("headers", {})
        return httpx.request(method, self.url + path, headers=headers, timeout=60.0, **arguments)

    def refused(self, method: str, path: str, token: str | None, **arguments: Any) -> tuple[int, str]:
        """Return status and message of the answer to a request that must be refused."""
        answer = self.ask(method, path, token, **arguments)
        assert answer.status_code >= 400, answer.text
        return answer.status_code, str(answer.json()["error"]["message"])

    def entries(self, token: str, query: str = "") -> list[dict[str, Any]]:
        """Return what the token sees of the audit log."""
        answer = self.ask("GET", f"/v1/audit{query}", token)
        assert answer.status_code == 200, answer.text
        found: list[dict[str, Any]] = answer.json()["entries"]
        return found


@contextmanager
def opened_platform(clock: Clock | None = None) -> Iterator[Platform]:
    """Yield the platform of ``RDUKIT_HOME``, with its first token; nothing of it runs."""
    home = checked_home()
    place_database(home.folder)
    opened = open_known_platform(home)
    if clock is not None:
        opened = replace(opened, clock=clock, audit=AuditWriter(opened.database, clock))
    migrate(opened.database)  # where a part was opened before
    ensure_first_token(opened.database, opened.home, time.time() if clock is None else clock.now())
    try:
        yield opened
    finally:
        opened.database.close()


@contextmanager
def gateway_under_test(clock: Clock | None = None) -> Iterator[GatewayUnderTest]:
    """Serve ``opened_platform`` at a real socket."""
    with opened_platform(clock) as platform, serving(platform) as url:
        yield GatewayUnderTest(url, platform)
