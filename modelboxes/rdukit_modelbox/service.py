"""The box itself, shared by both wires: takes requests, has them run, tells how it goes.

All methods belong to one event loop, in the main thread.
"""

import fcntl
import logging
import math
import os
import secrets
import shutil
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Final

from rdukit.clock import Clock, SystemClock
from rdukit.errors import Conflict, InvalidArgument, RdukitError, Unavailable
from rdukit.settings import resolve
from rdukit_modelbox.artifacts.fetch import bring_file
from rdukit_modelbox.artifacts.reference import parse_output
from rdukit_modelbox.box import Box, Verb, check_compiler_version, load_box
from rdukit_modelbox.describe import describe
from rdukit_modelbox.inference import Inferencer, ModelInferencer
from rdukit_modelbox.metrics import Metrics
from rdukit_modelbox.mounts import Mounts, mount_points, plan_exchange, resolve_inputs
from rdukit_modelbox.operations.announcer import Announcer
from rdukit_modelbox.operations.journal import Journal
from rdukit_modelbox.operations.table import OperationTable
from rdukit_modelbox.operations.values import Failure, Operation, OperationEvent, VerbCall
from rdukit_modelbox.parameters import check_parameters
from rdukit_modelbox.runner import Runner, Work
from rdukit_modelbox.serving.box_models import Answer, BoxModels
from rdukit_modelbox.serving.model_version import ModelVersion
from rdukit_modelbox.settings import MAX_ROWS
from rdukit_modelbox.states import Event

logger = logging.getLogger(__name__)

#: File in the state folder with the operations.
JOURNAL: Final = "operations.sqlite"
#: Longest an operation may ask to be given; a year.
MAX_TIMEOUT_S: Final = 366 * 86400.0
_MAX_KEY: Final = 256
#: Seconds to wait for another box to let go of the state folder: one that was killed may still be ending.
_LOCK_WAIT_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Health:
    """Whether the box takes work now, and why not."""

    is_ready: bool
    reason: str = ""


class BoxService:
    """One running box."""

    def __init__(self, box_file: Path, state: Path, mounts: Sequence[Path] = (), clock: Clock | None = None) -> None:
        """``state`` is created; requests may name paths under it and under ``mounts``.

        Call from the event loop: what an earlier process of the box left to be resumed begins at once.

        Raises:
            InvalidArgument: the YAML is wrong or for another compiler, or a mount is not a folder.
            Conflict: another box has this state folder.
        """
        self.box: Box = load_box(box_file)
        check_compiler_version(self.box)
        state.mkdir(parents=True, exist_ok=True)
        self._box_file = box_file
        self._state = state.resolve()
        self._lock = _lock_folder(self._state)
        self._mounts = Mounts([state, *mounts, *mount_points(self.box)])
        clock = clock or SystemClock()
        self.metrics = Metrics(self.box.name)
        #: The models that it serves.
        self.models = BoxModels(self.box, self._state / "logs", self._find_latest, partial(bring_file, self._mounts))
        self.metrics.add_models(self.models.repository)
        #: What answers ``Infer`` and ``InferStream`` on both wires.
        self.inferencer: Inferencer = ModelInferencer(self.infer_rows, self._find_version)
        self._announcer = Announcer(lambda: self.operations, self.box.name, clock)
        self.operations = OperationTable(clock, Journal(self._state / JOURNAL), self._announcer.look)
        self._runner = Runner(
            self.operations, clock, self._state / "logs", memory_bytes_of(self.box), self._make_room, self._ended
        )
        self._is_closing = False
        #: PEF and checkpoint of the newest training or inference that succeeded.
        self._latest: dict[str, Path] = {}
        self._recover()

    def describe(self) -> dict[str, object]:
        """Verbs, parameters and their legal values."""
        return describe(self.box)

    def health(self) -> Health:
        """Ready means: a request that comes now would be worked on."""
        if self._is_closing:
            return Health(False, "the box is stopping")
        if self._runner.broken:
            return Health(False, f"operations cannot be started: {self._runner.broken}")
        if not os.access(self._state, os.W_OK):
            return Health(False, f"the state folder {self._state} is not writable")
        if shutil.disk_usage(self._state).free < 16 << 20:
            return Health(False, f"less than 16 MiB are free under {self._state}")
        return Health(True)

    async def readiness(self) -> Health:
        """``health``, and that the served model really answers: an inference goes through its device."""
        health = self.health()
        reason = await self.models.why_not_ready() if health.is_ready else ""
        return Health(False, reason) if reason else health

    def submit(self, verb: Verb, call: VerbCall) -> Operation:
        """Check a request and queue it; the same idempotency key gives the same operation.

        Raises:
            UnknownParameter, IllegalValue, InvalidArgument, NotFound: the request is wrong; the detail has ``field``.
            Conflict: the key stands for another request.
            Unavailable: the box is stopping, or cannot write the operation down.
        """
        if self._is_closing:
            raise Unavailable("the box is stopping; send the request to another one")
        _check_call(call)
        key = call.idempotency_key
        known = self.operations.find_by_key(key, call.asked(verb)) if key else None
        if known is not None:
            return known
        operation_id = f"op-{secrets.token_hex(8)}"
        work = self._work(verb, call, operation_id)
        operation = self.operations.add(operation_id, verb, call)
        self._runner.start(operation, work)
        logger.info("operation queued operation=%s verb=%s", operation.id, verb)
        return operation

    async def cancel(self, operation_id: str) -> Operation:
        """Cancel and wait for the end; an operation that has ended stays as it is.

        Raises:
            NotFound: no such operation.
        """
        self.operations.get(operation_id)
        await self._runner.cancel(operation_id)
        return self.operations.get(operation_id)

    async def watch(self, operation_id: str, after: int = 0) -> AsyncIterator[OperationEvent]:
        """Events with numbers above ``after``, as they come, to the result.

        Raises:
            NotFound: no such operation.
        """
        async for event in self.operations.follow(operation_id, after):
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
        answer = await self.models.rows(rows, paths)
        self.metrics.count_rows(len(rows), time.perf_counter() - started)
        return answer

    async def close(self) -> None:
        """Take nothing more, end what runs, and wait until no child does.

        Operations are cancelled, but those that asked to be resumed: the next process of the box goes on with them.
        """
        self._is_closing = True
        await self._runner.close()
        await self.models.close()
        await self._announcer.close()
        self.operations.close()
        os.close(self._lock)

    def _recover(self) -> None:
        for operation, call in self.operations.recover():
            try:
                work = self._work(operation.verb, call, operation.id)
            except RdukitError as error:
                failure = Failure(error.code, f"it cannot be resumed: {error.message}", error.detail)
                self.operations.apply(operation.id, Event.FAIL, failure=failure)
                continue
            self._runner.start(operation, work)
            logger.info("operation resumed operation=%s verb=%s runs=%d", operation.id, operation.verb, operation.runs)
        for operation in self.operations.all():
            self._announcer.look(operation)
            self._remember_again(operation)

    def _remember_again(self, operation: Operation) -> None:
        """What an earlier process of the box trained or served answers again, if its files are still there."""
        if operation.outputs is None or operation.verb not in {Verb.TRAIN, Verb.INFER}:
            return
        try:
            asked = self.operations.call_of(operation.id).inputs
            inputs = resolve_inputs(self._mounts, self.box, operation.verb, asked)
        except RdukitError:
            return
        self._remember(operation.verb, inputs, operation.outputs)

    def _work(self, verb: Verb, call: VerbCall, operation_id: str) -> Work:
        with _fields("parameters", "parameter"):
            parameters = check_parameters(self.box, verb, call.parameters)
        with _fields("inputs", "input"):
            inputs = resolve_inputs(self._mounts, self.box, verb, call.inputs)
        with _fields("output"):
            upload = parse_output(call.output).uri if call.output.startswith("s3://") else ""
            exchange = plan_exchange(self._mounts, self.box, verb, call.inputs, upload)
            output = self._output_folder("" if upload else call.output, operation_id)
        request = {
            "kind": "verb", "verb": str(verb), "box_file": str(self._box_file), "parameters": parameters,
            "inputs": {name: str(path) for name, path in inputs.items()}, "output": str(output),
            "exchange": asdict(exchange),
        }  # fmt: skip
        return Work(verb, request, inputs, call.timeout_s)

    async def _make_room(self, verb: Verb) -> None:
        if verb in {Verb.TRAIN, Verb.INFER}:
            # Synchronous inference holds tiles; the operation asked for needs them.
            await self.models.release_found()

    def _ended(self, operation: Operation, work: Work) -> None:
        if operation.outputs is not None:
            self._remember(work.verb, work.inputs, operation.outputs)
        self.metrics.count_ended(operation)

    async def _find_version(self, inputs: Mapping[str, str]) -> ModelVersion:
        if self._is_closing:
            raise Unavailable("the box is stopping; send the request to another one")
        return await self.models.version_of(self._rows_inputs(inputs))

    def _find_latest(self) -> tuple[Path, Path] | None:
        found = self._latest
        return (found["pef"], found["checkpoint"]) if found else None

    def _rows_inputs(self, inputs: Mapping[str, str]) -> tuple[Path, Path] | None:
        """PEF and checkpoint that ``inputs`` name; None: whatever the box serves, or the newest."""
        if not inputs and self.models.repository.current is not None:
            return None
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
        return paths["pef"], paths["checkpoint"]

    def _output_folder(self, text: str, operation_id: str) -> Path:
        folder = self._mounts.resolve_output(text) if text else self._state / "operations" / operation_id
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as cause:
            raise InvalidArgument(f"output: {folder} cannot be made a folder: {cause.strerror}") from cause
        return folder

    def _remember(self, verb: Verb, inputs: Mapping[str, Path], outputs: Mapping[str, str]) -> None:
        match verb:
            case Verb.TRAIN if "://" not in outputs["checkpoint"]:
                self._latest = {"pef": inputs["pef"], "checkpoint": Path(outputs["checkpoint"])}
            case Verb.INFER:
                self._latest = {"pef": inputs["pef"], "checkpoint": inputs["checkpoint"]}
            case _:
                pass


def memory_bytes_of(box: Box) -> int:
    """Resident memory that the box's YAML allows a child; 0: no limit."""
    return box.resources.memory or 0


def _check_call(call: VerbCall) -> None:
    if len(call.idempotency_key) > _MAX_KEY:
        message = f"idempotency_key has {len(call.idempotency_key)} characters; legal: at most {_MAX_KEY}"
        raise InvalidArgument(message, field="idempotency_key")
    if not (math.isfinite(call.timeout_s) and 0 <= call.timeout_s <= MAX_TIMEOUT_S):
        message = f"timeout_s: {call.timeout_s} is not legal; legal: 0 (no limit) <= x <= {MAX_TIMEOUT_S:.0f}"
        raise InvalidArgument(message, field="timeout_s")


@contextmanager
def _fields(place: str, detail: str = "") -> Iterator[None]:
    """Errors in the block name the field of the request that is wrong, the one in their ``detail`` if they say."""
    try:
        yield
    except RdukitError as error:
        name = error.detail.get(detail) if detail else None
        error.detail.setdefault("field", f"{place}.{name}" if isinstance(name, str) else place)
        raise


def _lock_folder(folder: Path) -> int:
    """Be the only box of a state folder until the descriptor is closed or the process ends.

    Raises:
        Conflict: another box has it.
    """
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    end = time.monotonic() + _LOCK_WAIT_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
        except BlockingIOError as cause:
            if time.monotonic() > end:
                os.close(descriptor)
                raise Conflict(f"another box has the state folder {folder}; give this one another --state") from cause
            time.sleep(0.05)
        except OSError as cause:
            logger.warning("state folder without locks folder=%s reason=%s", folder, cause)
            return descriptor
