"""The box itself, shared by both wires: takes requests, runs them, reports their progress.

All methods belong to one event loop, in the main thread.
"""

import logging
import secrets
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from rdukit.errors import InvalidArgument, Overloaded, Unavailable
from rdukit.interfaces import Clock, SystemClock
from rdukit.settings import resolve
from rdukit_modelbox.artifacts.fetch import bring_file
from rdukit_modelbox.artifacts.mounts import Mounts, mount_points
from rdukit_modelbox.contract.box import Box, Verb, check_compiler_version, load_box
from rdukit_modelbox.contract.describe import describe
from rdukit_modelbox.operations.planning import WorkPlanner, check_call
from rdukit_modelbox.operations.runner import OperationRunner, VerbWork
from rdukit_modelbox.operations.table import OperationTable
from rdukit_modelbox.operations.values import Operation, OperationEvent, OperationState, VerbCall
from rdukit_modelbox.server.inference import Inferencer, ModelInferencer
from rdukit_modelbox.server.latest_model import LatestModel
from rdukit_modelbox.server.state_folder import StateFolder
from rdukit_modelbox.settings import MAX_OPERATIONS, MAX_ROWS
from rdukit_serving.models.metrics import ServingCollector
from rdukit_serving.models.served import Answer, ServedModels
from rdukit_serving.models.version import ModelVersion

if TYPE_CHECKING:
    from rdukit_serving.raw_inputs.answers import Prediction

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Health:
    """The box's readiness: whether it accepts work now, or the reason why not."""

    is_ready: bool
    reason: str = ""


class BoxService:
    """A running box."""

    #: Name of the model in requests; "" for the box's.
    _model_name = ""

    def __init__(self, box_file: Path, state: Path, mounts: Sequence[Path] = (), clock: Clock | None = None) -> None:
        """``state`` is created; requests may name paths under it and under ``mounts``.

        Raises:
            InvalidArgument: the YAML is wrong or for another compiler, or a mount is not a folder.
            Conflict: another box has this state folder.
        """
        self.box: Box = load_box(box_file)
        check_compiler_version(self.box)
        self._state = StateFolder(state)
        mounted = Mounts([state, *mounts, *mount_points(self.box)])
        self._planner = WorkPlanner(self.box, box_file, mounted, self._state)
        self._latest = LatestModel(self.box, mounted)
        clock = clock or SystemClock()
        self.metrics = Metrics(self.box.name)
        #: The models that it serves.
        self.models = self._make_models(mounted)
        self.metrics.add_models(self.models)
        #: Answers ``Infer`` and ``InferStream`` on both wires.
        self.inferencer: Inferencer = ModelInferencer(self.infer_rows, self.predict, self._find_version)
        self.operations = OperationTable(clock)
        self._runner = OperationRunner(
            self.operations, clock, self._state.logs, self.box.resources.memory or 0, self._make_room, self._ended
        )
        self._is_closing = False

    def _make_models(self, mounted: Mounts) -> ServedModels:
        serving, name = self.box.serving.model_dump(mode="json"), self._model_name
        return ServedModels(
            self.box.name, {**serving, "name": name} if name else serving, self._state.logs, self._latest.find,
            partial(bring_file, mounted),
        )  # fmt: skip

    def describe(self) -> dict[str, object]:
        """Return verbs, parameters and their legal values."""
        return describe(self.box)

    def health(self) -> Health:
        """Return the box's health. Ready means that a new request would be processed."""
        if self._is_closing:
            return Health(False, "the box is stopping")
        if self._runner.broken:
            return Health(False, f"operations cannot be started: {self._runner.broken}")
        reason = self._state.why_not_usable()
        return Health(not reason, reason)

    async def readiness(self) -> Health:
        """Return ``health``, after a test inference on the served model's device."""
        health = self.health()
        reason = await self.models.why_not_ready() if health.is_ready else ""
        return Health(False, reason) if reason else health

    def takes_requests(self) -> bool:
        """Return whether a new request would be processed."""
        return self.health().is_ready

    async def why_not_ready(self) -> str:
        """Return the reason why the box is not ready; empty if it is."""
        return (await self.readiness()).reason

    def submit(self, verb: Verb, call: VerbCall) -> Operation:
        """Check a request and queue it.

        Raises:
            UnknownParameter, IllegalValue, InvalidArgument, NotFound: the request is wrong; the detail has ``field``.
            Overloaded: too many operations wait. Unavailable: the box is stopping.
        """
        self._check_open()
        check_call(call)
        limit = resolve(MAX_OPERATIONS)
        if self._runner.unended >= limit:
            raise Overloaded(
                f"{self._runner.unended} operations wait or run, which is the limit {limit} "
                "(box.max_operations); try later"
            )
        operation_id = f"op-{secrets.token_hex(8)}"
        work = self._planner.plan(verb, call, operation_id)
        operation = self.operations.add(operation_id, verb)
        self._runner.start(operation, work)
        logger.info("operation queued operation=%s verb=%s", operation.id, verb)
        return operation

    async def cancel(self, operation_id: str) -> Operation:
        """Cancel and wait for the end; an ended operation is unchanged.

        Raises:
            NotFound: no such operation.
        """
        self.operations.get(operation_id)
        await self._runner.cancel(operation_id)
        return self.operations.get(operation_id)

    async def watch(self, operation_id: str, after: int = 0) -> AsyncIterator[OperationEvent]:
        """Yield events with numbers above ``after``, as they come, up to the result.

        Raises:
            NotFound: no such operation.
        """
        async for event in self.operations.follow(operation_id, after):
            yield event

    async def infer_rows(self, rows: Sequence[Sequence[float]], inputs: Mapping[str, str]) -> Answer:
        """Compute logits and classes for rows synchronously. Without ``inputs``: the newest model that this box trained
        or served.

        Raises:
            InvalidArgument: too many rows, a row of wrong length, or no model yet.
            NoResources: another operation holds the tiles.
            Unavailable: the inference process died, or the box is stopping.
        """
        paths = self._inputs_of_rows(len(rows), inputs)
        started = time.perf_counter()
        answer = await self.models.rows(rows, paths)
        self.metrics.count_rows(len(rows), time.perf_counter() - started)
        return answer

    async def predict(self, rows: Sequence[Mapping[str, object]], inputs: Mapping[str, str]) -> "Sequence[Prediction]":
        """Labels with their probabilities for rows by column name, at once; ``inputs`` as of ``infer_rows``.

        Raises:
            InvalidArgument: too many rows, the model was trained on no table, or a row cannot be used.
            NoResources, Unavailable: as ``infer_rows``.
        """
        paths = self._inputs_of_rows(len(rows), inputs)
        started = time.perf_counter()
        answer = await self.models.predict(rows, await self.models.version_of(paths))
        self.metrics.count_rows(len(rows), time.perf_counter() - started)
        return answer

    async def close(self) -> None:
        """Refuse new requests, cancel all operations, and wait for their children."""
        self._is_closing = True
        await self._runner.close()
        await self.models.close()
        self._state.close()

    async def _make_room(self, verb: Verb) -> None:
        if verb in {Verb.TRAIN, Verb.INFER, Verb.EVALUATE}:
            # Synchronous inference holds tiles that the operation needs.
            await self.models.release_found()

    def _ended(self, operation: Operation, work: VerbWork) -> None:
        if operation.outputs is not None:
            self._latest.remember(work.verb, work.inputs, operation.outputs)
        self.metrics.count_ended(operation)

    async def _find_version(self, inputs: Mapping[str, str]) -> ModelVersion:
        self._check_open()
        return await self.models.version_of(self._rows_inputs(inputs))

    def _check_open(self) -> None:
        if self._is_closing:
            raise Unavailable("the box is stopping; send the request to another box")

    def _inputs_of_rows(self, count: int, inputs: Mapping[str, str]) -> tuple[Path, Path] | None:
        """Check that ``count`` rows can be answered; return the files of the model that ``inputs`` mean."""
        self._check_open()
        limit = resolve(MAX_ROWS)
        if count > limit:
            raise InvalidArgument(f"{count} rows in one request; expected at most {limit}; or use a data set")
        return self._rows_inputs(inputs)

    def _rows_inputs(self, inputs: Mapping[str, str]) -> tuple[Path, Path] | None:
        """Return PEF and checkpoint of ``inputs``; ``None``: the served or the newest model."""
        if not inputs and self.models.repository.current is not None:
            return None
        return self._latest.resolve(inputs)


class Metrics:
    """Metrics of the box."""

    def __init__(self, box: str) -> None:
        self.registry = CollectorRegistry()
        labels = {"box": box}
        self._operations = Counter(
            "rdukit_box_operations", "Ended operations.", ["box", "verb", "state"], registry=self.registry
        )
        self._seconds = Histogram(
            "rdukit_box_operation_seconds", "From request to end, on this host.", ["box", "verb"],
            buckets=(0.1, 0.5, 1, 2, 5, 10, 30, 60, 300, 1800, 7200), registry=self.registry,
        )  # fmt: skip
        gauge = Gauge("rdukit_box_operations_now", "Operations by state.", ["box", "state"], registry=self.registry)
        self._queued = gauge.labels(**labels, state=str(OperationState.QUEUED))
        self._running = gauge.labels(**labels, state=str(OperationState.RUNNING))
        self._rows = Counter(
            "rdukit_box_rows", "Rows answered at once.", ["box"], registry=self.registry
        ).labels(**labels)  # fmt: skip
        self._rows_seconds = Histogram(
            "rdukit_box_rows_seconds", "One synchronous inference request, on this host.", ["box"],
            buckets=(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1, 5, 30), registry=self.registry,
        ).labels(**labels)  # fmt: skip
        self._box = box

    def add_models(self, models: ServedModels) -> None:
        """Add the metrics of the models that are served."""
        self.registry.register(ServingCollector(models))

    def count_ended(self, operation: Operation) -> None:
        """Count an operation that reached a final state."""
        self._operations.labels(self._box, operation.verb, operation.state).inc()
        self._seconds.labels(self._box, operation.verb).observe(
            max(0.0, (operation.ended_at or operation.created_at) - operation.created_at)
        )

    def count_rows(self, rows: int, seconds: float) -> None:
        """Count a synchronous inference that was answered."""
        self._rows.inc(rows)
        self._rows_seconds.observe(seconds)

    def text(self, operations: list[Operation]) -> bytes:
        """Return the exposition."""
        self._queued.set(sum(o.state is OperationState.QUEUED for o in operations))
        self._running.set(sum(o.state is OperationState.RUNNING for o in operations))
        return generate_latest(self.registry)
