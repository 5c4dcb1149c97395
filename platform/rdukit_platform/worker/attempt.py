"""One attempt from its message to its end: claim, tiles, box, verb, events, artifacts, verdict.

The worker holds the node's lease on its own connection, so that the tiles are free as soon as the worker or this
attempt is gone. A job's folder outlives its attempts, so that the next one finds the checkpoint; a file lock that the
box inherits keeps two boxes of one job out of it.
"""

import contextlib
import fcntl
import logging
import os
import shutil
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sqlalchemy import select

from rdukit.clock import Clock
from rdukit.errors import Cancelled, LeaseLost, NoResources, NotFound, RdukitError, Unavailable
from rdukit.snd import SndClient
from rdukit_platform.artifacts.store import ContentDamaged, Store
from rdukit_platform.broker import Waker
from rdukit_platform.db.engine import Database
from rdukit_platform.db.models import ArtifactRow, JobRow
from rdukit_platform.jobs import execution
from rdukit_platform.jobs.attempts import Outcome
from rdukit_platform.jobs.execution import Output, Ticket
from rdukit_platform.jobs.states import JobState
from rdukit_platform.settings import Home
from rdukit_platform.worker.box import BoxProcess
from rdukit_platform.worker.client import BoxClient
from rdukit_platform.worker.hearts import Hearts

logger = logging.getLogger(__name__)

#: Progress is written at most this often; the last one always is.
PROGRESS_S: Final = 0.25
LOCK_WAIT_S: Final = 3.0


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What all attempts of a worker share."""

    home: Home
    database: Database
    store: Store
    hearts: Hearts
    waker: Waker
    clock: Clock
    name: str
    box_command: tuple[str, ...]
    box_start_s: float
    backoff_s: float


class Failure(Exception):
    """Inside an attempt: it ends with this outcome."""

    def __init__(self, outcome: Outcome, error: RdukitError) -> None:
        super().__init__(error.message)
        self.outcome = outcome
        self.error: dict[str, object] = {"code": error.code, "message": error.message, "detail": dict(error.detail)}


class Attempt:
    """One attempt that this worker may get to run."""

    def __init__(self, around: Surroundings, ticket: Ticket, is_stopping: threading.Event) -> None:
        self._around, self._ticket = around, ticket
        #: The worker is shutting down.
        self._is_stopping = is_stopping
        #: The attempt is to end: lost, cancelled or interrupted.
        self._stop = threading.Event()
        self._box: BoxProcess | None = None
        self._lease_id: str | None = None
        self._folder = around.home.work / ticket.job_id

    def run(self) -> None:
        """Run it to its end. Does nothing if somebody else has it."""
        around = self._around
        with around.database.write() as session:
            job = execution.claim(session, self._ticket, around.name, around.hearts.lease_s, around.clock.now())
        if job is None:
            logger.info("message dropped job=%s attempt=%s", self._ticket.job_id, self._ticket.attempt_id)
            return
        logger.info("attempt begins job=%s number=%d", job.id, job.attempt)
        around.hearts.hold(self._ticket, self.abort)
        try:
            self._run_claimed(job)
        finally:
            around.hearts.drop(self._ticket)
            around.waker.wake()

    def abort(self) -> None:
        """End it from outside; safe in any thread."""
        self._stop.set()
        box = self._box
        if box is not None:
            box.terminate()

    def _run_claimed(self, job: JobRow) -> None:
        try:
            self._work(job)
            shutil.rmtree(self._folder, ignore_errors=True)
        except LeaseLost as lost:
            self._leave(lost)
        except Failure as failure:
            self._fail(failure.outcome, failure.error)
        except Exception as error:
            logger.exception("attempt broke job=%s", job.id)
            self._fail(Outcome.BOX_LOST, {"code": "internal", "message": f"the worker failed: {error!r}"})

    def _fail(self, outcome: Outcome, error: Mapping[str, object]) -> None:
        if self._stop.is_set():
            outcome, error = Outcome.INTERRUPTED, {"code": "unavailable", "message": "the worker was stopped"}
        around = self._around
        try:
            with around.database.write() as session:
                state = execution.fail(session, self._ticket, outcome, error, around.backoff_s, around.clock.now())
            logger.info("attempt ends job=%s outcome=%s state=%s", self._ticket.job_id, outcome, state)
        except LeaseLost as lost:
            self._leave(lost)

    def _leave(self, lost: LeaseLost) -> None:
        # Whoever ended the attempt has written why. A cancelled job has no use for its folder.
        logger.info("attempt ends, not ours any more job=%s why=%s", self._ticket.job_id, lost.message)
        with self._around.database.read() as session:
            job = session.get(JobRow, self._ticket.job_id)
        if job is not None and job.state == JobState.CANCELLED:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _work(self, job: JobRow) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        snd: SndClient | None = None
        try:
            self._lock_folder(lock)
            inputs = self._bring_inputs(job)
            environment: dict[str, str] = {}
            if job.tiles:
                snd = self._connect_node()
                environment = self._lease_tiles(snd, job)
            operation = self._run_box(job, inputs, environment, lock)
            self._keep(job, operation)
        finally:
            if self._box is not None:
                self._box.stop()
            if snd is not None:
                self._give_back_tiles(snd)
            os.close(lock)

    def _lock_folder(self, lock: int) -> None:
        deadline = time.monotonic() + LOCK_WAIT_S
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError as cause:
                if time.monotonic() > deadline or self._stop.is_set():
                    error = Unavailable(f"the attempt before still works in the folder of job {self._ticket.job_id}")
                    raise Failure(Outcome.FOLDER_BUSY, error) from cause
            time.sleep(0.05)

    def _bring_inputs(self, job: JobRow) -> dict[str, str]:
        incoming = self._folder / "in"
        shutil.rmtree(incoming, ignore_errors=True)
        incoming.mkdir()
        paths: dict[str, str] = {}
        with self._around.database.read() as session:
            rows = session.scalars(select(ArtifactRow).where(ArtifactRow.id.in_(job.inputs.values()))).all()
            artifacts = {row.id: row for row in rows}
        for slot, artifact_id in job.inputs.items():
            target = incoming / slot
            try:
                artifact = artifacts[artifact_id]
                self._around.store.materialize(artifact.digest, artifact.is_folder, target)
            except (KeyError, NotFound, ContentDamaged) as cause:
                error = NotFound(f"input {slot!r}: the content of artifact {artifact_id} is not in the store: {cause}")
                raise Failure(Outcome.INPUT_LOST, error) from cause
            paths[slot] = str(target)
        return paths

    def _connect_node(self) -> SndClient:
        try:
            return SndClient(self._around.home.snd_socket)
        except Unavailable as cause:
            raise Failure(Outcome.NO_RESOURCES, cause) from cause

    def _lease_tiles(self, snd: SndClient, job: JobRow) -> dict[str, str]:
        try:
            status = snd.status()
            # Memory in proportion to the tiles: what a whole node's tiles would share evenly.
            share = int(status["memory"]["total"]) // max(len(status["tiles"]), 1) * job.tiles
            lease = acquire_share(
                snd, f"{job.box}-{job.verb}"[:64], job.tiles, share, tenant=job.tenant_id, job=job.id, launch=job.id
            )
        except (NoResources, Unavailable) as cause:
            raise Failure(Outcome.NO_RESOURCES, cause) from cause
        self._lease_id = str(lease["id"])
        with self._around.database.write() as session:
            execution.hold_tiles(session, self._ticket, lease["tiles"])
        return {
            "RDUKIT_LEASE": f"{lease['id']}:{lease['token']}",
            "RDUKIT_SND_SOCKET": str(self._around.home.snd_socket),
        }

    def _give_back_tiles(self, snd: SndClient) -> None:
        # Closing would do; said in so many words, the node's books tell an end in order from a lost worker.
        with snd, contextlib.suppress(RdukitError):
            if self._lease_id is not None:
                snd.release(self._lease_id)

    def _run_box(
        self, job: JobRow, inputs: Mapping[str, str], environment: Mapping[str, str], lock: int
    ) -> dict[str, Any]:
        around = self._around
        folder, output = self._folder / f"attempt-{job.attempt}", self._folder / "out"
        folder.mkdir(exist_ok=True)
        output.mkdir(exist_ok=True)
        mounts = [self._folder / "in", output]
        box = self._box = BoxProcess.start(around.box_command, job.box, folder, mounts, environment, lock)
        try:
            if self._stop.is_set() or self._is_stopping.is_set():
                raise Cancelled("the attempt was stopped before its box")
            url = box.wait_ready(around.box_start_s, self._stop)
            with BoxClient(url) as client:
                key = f"{job.id}:{job.attempt}"
                try:
                    operation = client.call_verb(job.verb, job.parameters, inputs, str(output), key)
                except Unavailable:
                    raise
                except RdukitError as refused:
                    raise Failure(Outcome.BOX_FAILED, refused) from refused
                with around.database.write() as session:
                    execution.start(session, self._ticket, box.pid, around.clock.now())
                return self._follow(client, str(operation["id"]), box)
        except (Cancelled, Unavailable) as error:
            self._record_tail(box)
            raise Failure(Outcome.INTERRUPTED if self._stop.is_set() else Outcome.BOX_LOST, error) from error

    def _follow(self, client: BoxClient, operation_id: str, box: BoxProcess) -> dict[str, Any]:
        around = self._around
        written_at, pending = float("-inf"), None
        for event in client.follow(operation_id, self._stop, lambda: box.is_running):
            kind = event.get("kind")
            if kind == "progress" and event.get("progress"):
                pending = event["progress"]
            if kind == "log" and event.get("log") is not None:
                with around.database.write() as session:
                    execution.record_logs(session, self._ticket, [str(event["log"])], around.clock.now())
            is_due = around.clock.monotonic() - written_at >= PROGRESS_S
            if pending is not None and (is_due or kind == "result"):
                with around.database.write() as session:
                    execution.record_progress(session, self._ticket, pending, around.clock.now())
                written_at, pending = around.clock.monotonic(), None
            if kind == "result":
                operation: dict[str, Any] = event.get("operation") or {}
                self._check_result(operation, box)
                return operation
        raise Unavailable("the box ended its stream without a result")

    def _check_result(self, operation: Mapping[str, Any], box: BoxProcess) -> None:
        state = operation.get("state")
        if state == "succeeded":
            return
        if state == "cancelled":
            raise Cancelled("the box cancelled the operation")
        error = operation.get("error") or {}
        self._record_tail(box)
        failed = Failure(Outcome.BOX_FAILED, RdukitError(str(error.get("message") or f"the operation is {state}")))
        failed.error |= {"code": str(error.get("code") or "internal"), "detail": dict(error.get("detail") or {})}
        raise failed

    def _record_tail(self, box: BoxProcess) -> None:
        lines = box.log_tail()
        if lines:
            with self._around.database.write() as session:
                execution.record_logs(session, self._ticket, lines, self._around.clock.now())

    def _keep(self, job: JobRow, operation: Mapping[str, Any]) -> None:
        around = self._around
        assert self._box is not None
        # The box must have ended before its files are read: what is stored does not change under us.
        self._box.stop()
        outputs = []
        for slot, text in (operation.get("outputs") or {}).items():
            path = self._output_path(str(slot), str(text))
            content = around.store.add_path(path)
            outputs.append(Output(str(slot), str(slot), content.digest, content.bytes, content.is_folder))
        with around.database.write() as session:
            made = execution.succeed(session, self._ticket, outputs, operation.get("result"), around.clock.now())
        logger.info("attempt succeeded job=%s artifacts=%s", job.id, ",".join(made.values()))

    def _output_path(self, slot: str, text: str) -> Path:
        path = Path(text.removeprefix("file://"))
        output = (self._folder / "out").resolve()
        if not path.resolve().is_relative_to(output) or not path.exists():
            error = RdukitError(f"the box names {text!r} as its output {slot!r}; legal are paths inside {output}")
            raise Failure(Outcome.BOX_FAILED, error)
        return path


def acquire_share(snd: SndClient, application: str, tiles: int, share: int, **more: object) -> dict[str, Any]:
    """Lease tiles with ``share`` bytes of memory, or with what is left of it where channels are out of service.

    Raises:
        NoResources: the tiles are not free, or less than half of the share is.
    Source:
        Ours: without this, a job that asks for all tiles of an RDU would wait until its memory is repaired.
    """
    try:
        return snd.acquire(application, tiles, share, 0.0, **more)
    except NoResources as refused:
        fits = refused.detail.get("fits_memory_bytes")
        if not isinstance(fits, int) or fits < share // 2:
            raise
        logger.warning("less memory than its share application=%s share=%d given=%d", application, share, fits)
        return snd.acquire(application, tiles, fits, 0.0, **more)
