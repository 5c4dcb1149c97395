"""The box itself, shared by both wires: takes requests, runs them one after another in children, tells how it goes.

All methods belong to one event loop, in the main thread.
"""

import asyncio
import json
import logging
import os
import secrets
import shutil
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rdukit.clock import Clock, SystemClock
from rdukit.errors import InvalidArgument, Unavailable
from rdukit.settings import resolve
from rdukit_modelbox.box import Box, Verb, check_compiler_version, load_box
from rdukit_modelbox.describe import describe
from rdukit_modelbox.metrics import Metrics
from rdukit_modelbox.mounts import Mounts, resolve_inputs
from rdukit_modelbox.operations import Failure, Operation, OperationEvent, OperationTable
from rdukit_modelbox.parameters import check_parameters
from rdukit_modelbox.rows_worker import Answer, RowsWorker
from rdukit_modelbox.settings import CANCEL_GRACE_S, MAX_ROWS
from rdukit_modelbox.states import Event
from rdukit_modelbox.supervisor import Listener, Outcome, run_child

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class VerbCall:
    """A request for a verb, as a caller wrote it."""

    parameters: Mapping[str, object] = field(default_factory=dict)
    inputs: Mapping[str, str] = field(default_factory=dict)
    output: str = ""
    idempotency_key: str = ""

    def asked(self, verb: Verb) -> str:
        """Equal for equal requests, whatever their key."""
        return json.dumps([verb, self.parameters, self.inputs, self.output], sort_keys=True, default=repr)


@dataclass(frozen=True, slots=True)
class Health:
    """Whether the box takes work now, and why not."""

    is_ready: bool
    reason: str = ""


class BoxService:
    """One running box."""

    def __init__(self, box_file: Path, state: Path, mounts: Sequence[Path] = (), clock: Clock | None = None) -> None:
        """``state`` is created; requests may name paths under it and under ``mounts``.

        Raises:
            InvalidArgument: the YAML is wrong or for another compiler, or a mount is not a folder.
        """
        self.box: Box = load_box(box_file)
        check_compiler_version(self.box)
        state.mkdir(parents=True, exist_ok=True)
        self._box_file = box_file
        self._state = state.resolve()
        self._mounts = Mounts([state, *mounts])
        self.operations = OperationTable(clock or SystemClock())
        self.metrics = Metrics(self.box.name)
        self._rows = RowsWorker(box_file, self._state / "logs" / "rows.log")
        #: Operations that have not ended: what cancels them, and the task that ends when they have.
        self._cancels: dict[str, asyncio.Event] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        #: Preprocess needs no device, so it need not wait for the others.
        self._device_lane = asyncio.Semaphore(1)
        self._host_lane = asyncio.Semaphore(1)
        self._is_closing = False
        #: Why the last child did not even start; empty once one has.
        self._broken = ""
        #: PEF and checkpoint of the newest training or inference that succeeded.
        self._latest: dict[str, Path] = {}

    def describe(self) -> dict[str, object]:
        """Verbs, parameters and their legal values."""
        return describe(self.box)

    def health(self) -> Health:
        """Ready means: a request that comes now would be worked on."""
        if self._is_closing:
            return Health(False, "the box is stopping")
        if self._broken:
            return Health(False, f"operations cannot be started: {self._broken}")
        if not os.access(self._state, os.W_OK):
            return Health(False, f"the state folder {self._state} is not writable")
        if shutil.disk_usage(self._state).free < 16 << 20:
            return Health(False, f"less than 16 MiB are free under {self._state}")
        return Health(True)

    def submit(self, verb: Verb, call: VerbCall) -> Operation:
        """Check a request and queue it; the same idempotency key gives the same operation.

        Raises:
            UnknownParameter, IllegalValue, InvalidArgument, NotFound: the request is wrong.
            Conflict: the key stands for another request.
            Unavailable: the box is stopping.
        """
        if self._is_closing:
            raise Unavailable("the box is stopping; send the request to another one")
        key, asked = call.idempotency_key, call.asked(verb)
        known = self.operations.find_by_key(key, asked) if key else None
        if known is not None:
            return known
        parameters = check_parameters(self.box, verb, call.parameters)
        inputs = resolve_inputs(self._mounts, self.box, verb, call.inputs)
        operation_id = f"op-{secrets.token_hex(8)}"
        output = self._output_folder(call.output, operation_id)
        request = {
            "kind": "verb", "verb": str(verb), "box_file": str(self._box_file), "parameters": parameters,
            "inputs": {name: str(path) for name, path in inputs.items()}, "output": str(output),
        }  # fmt: skip
        operation = self.operations.add(operation_id, verb, key, asked)
        self._cancels[operation.id] = asyncio.Event()
        self._tasks[operation.id] = asyncio.create_task(self._run(operation.id, verb, request, inputs))
        logger.info("operation queued operation=%s verb=%s", operation.id, verb)
        return operation

    async def cancel(self, operation_id: str) -> Operation:
        """Cancel and wait for the end; an operation that has ended stays as it is.

        Raises:
            NotFound: no such operation.
        """
        self.operations.get(operation_id)
        task = self._tasks.get(operation_id)
        if task is not None:
            self._cancels[operation_id].set()
            await asyncio.wait({task})
        return self.operations.get(operation_id)

    async def watch(self, operation_id: str, after: int = 0) -> AsyncIterator[OperationEvent]:
        """Events with numbers above ``after``, as they come, to the result.

        Raises:
            NotFound: no such operation.
        """
        async for event in self.operations.log_of(operation_id).follow(after):
            yield event

    async def infer_rows(self, rows: Sequence[Sequence[float]], inputs: Mapping[str, str]) -> Answer:
        """Logits and classes for rows, at once. Without ``inputs``: the newest model that this box trained or served.

        Raises:
            InvalidArgument: too many rows, a row of wrong length, or no model yet.
            NoResources: another operation holds the tiles.
            Unavailable: the inference process died, or the box is stopping.
        """
        if self._is_closing:
            raise Unavailable("the box is stopping; send the request to another one")
        limit = resolve(MAX_ROWS)
        if len(rows) > limit:
            raise InvalidArgument(f"{len(rows)} rows in one request; legal: at most {limit}; or use a data set")
        paths = self._rows_inputs(inputs)
        started = time.perf_counter()
        answer = await self._rows.predict(rows, paths["pef"], paths["checkpoint"])
        self.metrics.count_rows(len(rows), time.perf_counter() - started)
        return answer

    async def close(self) -> None:
        """Take nothing more, cancel everything, and wait until no child runs."""
        self._is_closing = True
        for cancel in self._cancels.values():
            cancel.set()
        if self._tasks:
            await asyncio.wait(set(self._tasks.values()))
        await self._rows.stop()

    def _rows_inputs(self, inputs: Mapping[str, str]) -> dict[str, Path]:
        known = {"pef", "checkpoint"}
        if not set(inputs) <= known:
            raise InvalidArgument(f"rows take the inputs {sorted(known)}, not {sorted(set(inputs) - known)}")
        given = {**{name: str(path) for name, path in self._latest.items()}, **inputs}
        if set(given) != known:
            raise InvalidArgument(
                "this box has no trained model yet: pass inputs pef and checkpoint, or train first",
                missing=sorted(known - set(given)),
            )
        slots = {**given, "dataset": str(self._state)}
        required = {slot.name for slot in self.box.slots_of(Verb.INFER).inputs}
        paths = resolve_inputs(self._mounts, self.box, Verb.INFER, {k: v for k, v in slots.items() if k in required})
        return {name: paths[name] for name in known}

    def _output_folder(self, text: str, operation_id: str) -> Path:
        folder = self._mounts.resolve(text, "output") if text else self._state / "operations" / operation_id
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as cause:
            raise InvalidArgument(f"output: {folder} cannot be made a folder: {cause.strerror}") from cause
        return folder

    async def _run(
        self, operation_id: str, verb: Verb, request: Mapping[str, object], inputs: Mapping[str, Path]
    ) -> None:
        cancel = self._cancels[operation_id]
        try:
            outcome = await self._queue_and_run(operation_id, verb, request, cancel)
        except Exception as error:
            logger.exception("operation broke operation=%s", operation_id)
            outcome = Outcome(failed=Failure("internal", f"{type(error).__name__}: {error}"))
        ended = self._end(operation_id, outcome)
        if ended.outputs is not None:
            self._remember(verb, inputs, ended.outputs)
        self.metrics.count_ended(ended)
        logger.info("operation ended operation=%s verb=%s state=%s", operation_id, verb, ended.state)
        del self._tasks[operation_id], self._cancels[operation_id]

    async def _queue_and_run(
        self, operation_id: str, verb: Verb, request: Mapping[str, object], cancel: asyncio.Event
    ) -> Outcome:
        lane = self._host_lane if verb is Verb.PREPROCESS else self._device_lane
        if not await _acquire_unless(lane, cancel):
            return Outcome(is_cancelled=True)
        try:
            self.operations.apply(operation_id, Event.START)
            if verb in {Verb.TRAIN, Verb.INFER}:
                # Synchronous inference holds tiles; the operation asked for needs them.
                await self._rows.stop()
            log = self.operations.log_of(operation_id)
            listener = Listener(
                progress=lambda progress: log.add("progress", progress=progress),
                log=lambda line: log.is_closed or log.add("log", log=line),
            )
            log_file = self._state / "logs" / f"{operation_id}.log"
            outcome = await run_child(request, log_file, listener, cancel, resolve(CANCEL_GRACE_S))
        finally:
            lane.release()
        if outcome.has_started:
            self._broken = ""
        elif outcome.failed is not None:
            self._broken = outcome.failed.message
        return outcome

    def _end(self, operation_id: str, outcome: Outcome) -> Operation:
        if outcome.succeeded is not None:
            result, outputs = outcome.succeeded
            return self.operations.apply(operation_id, Event.SUCCEED, result=result, outputs=outputs)
        if outcome.failed is not None:
            return self.operations.apply(operation_id, Event.FAIL, failure=outcome.failed)
        return self.operations.apply(operation_id, Event.CANCEL)

    def _remember(self, verb: Verb, inputs: Mapping[str, Path], outputs: Mapping[str, str]) -> None:
        match verb:
            case Verb.TRAIN:
                self._latest = {"pef": inputs["pef"], "checkpoint": Path(outputs["checkpoint"])}
            case Verb.INFER:
                self._latest = {"pef": inputs["pef"], "checkpoint": inputs["checkpoint"]}
            case _:
                pass


async def _acquire_unless(lane: asyncio.Semaphore, cancel: asyncio.Event) -> bool:
    """Wait for the lane; False if ``cancel`` is set first."""
    acquiring = asyncio.create_task(lane.acquire())
    cancelling = asyncio.create_task(cancel.wait())
    await asyncio.wait({acquiring, cancelling}, return_when=asyncio.FIRST_COMPLETED)
    cancelling.cancel()
    if not cancel.is_set():
        return True
    if acquiring.done():
        lane.release()
    else:
        acquiring.cancel()
    return False
