"""Synchronous inference for ``Infer`` and ``InferStream`` of both wires. Axes: N rows, F features, C classes."""

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from rdukit.errors import InvalidArgument
from rdukit_serving.models.version import ModelVersion
from rdukit_serving.signature import InferRequest, RawTensor

if TYPE_CHECKING:
    from rdukit_serving.raw_inputs.answers import Prediction

Rows = list[list[float]]
RowsFunction = Callable[[Sequence[Sequence[float]], Mapping[str, str]], Awaitable[tuple[Rows, list[int]]]]
TableRow = Mapping[str, object]
PredictFunction = Callable[[Sequence[TableRow], Mapping[str, str]], "Awaitable[Sequence[Prediction]]"]
FindVersion = Callable[[Mapping[str, str]], Awaitable[ModelVersion]]


@dataclass(frozen=True, slots=True)
class InferCall:
    """A request to infer: rows, tensors or a table, exactly one of them.

    ``inputs`` may name ``pef`` and ``checkpoint``; ``outputs`` restricts the answer's tensors; empty: all.
    """

    rows: Sequence[Sequence[float]] = ()
    tensors: Sequence[RawTensor] = ()
    inputs: Mapping[str, str] = field(default_factory=dict)
    outputs: Sequence[str] = ()
    #: Rows by column name, instead of rows or tensors.
    table: Sequence[TableRow] = ()


@dataclass(frozen=True, slots=True)
class InferAnswer:
    """Rows [N][C] and labels [N] for rows, tensors for tensors, predictions for rows by column name; ``timing_us``:
    microseconds of each phase.
    """

    rows: Rows = field(default_factory=list)
    labels: Sequence[int] = ()
    tensors: Sequence[RawTensor] = ()
    timing_us: Mapping[str, int] = field(default_factory=dict)
    predictions: "Sequence[Prediction]" = ()


class Inferencer(Protocol):
    """The part of a box that answers requests to infer."""

    async def infer(self, call: InferCall) -> InferAnswer:
        """Answer at once. Cancelling it cancels the work.

        Raises:
            InvalidArgument, NotFound: the request is wrong; the detail's ``field`` says where.
            NoResources, Unavailable: not now.
        """
        ...


class ModelInferencer:
    """Answers by the models that a box serves: rows by functions for them, tensors by their signature."""

    def __init__(self, infer_rows: RowsFunction, predict: PredictFunction, find_version: FindVersion) -> None:
        """``find_version``: the model that ``inputs`` mean."""
        self._infer_rows = infer_rows
        self._predict = predict
        self._find_version = find_version

    async def infer(self, call: InferCall) -> InferAnswer:
        """Run ``Inferencer.infer``."""
        check_one_kind(call)
        try:
            if call.table:
                return await self._table(call)
            return await (self._rows(call) if call.rows else self._tensors(call))
        except InvalidArgument as error:
            error.detail.setdefault("field", "tensors" if call.tensors else "rows")
            raise

    async def _table(self, call: InferCall) -> InferAnswer:
        started = time.perf_counter()
        predictions = await self._predict(call.table, call.inputs)
        return InferAnswer(predictions=predictions, timing_us={"total": _microseconds_since(started)})

    async def _rows(self, call: InferCall) -> InferAnswer:
        started = time.perf_counter()
        outputs, labels = await self._infer_rows(call.rows, call.inputs)
        return InferAnswer(rows=outputs, labels=labels, timing_us={"total": _microseconds_since(started)})

    async def _tensors(self, call: InferCall) -> InferAnswer:
        started = time.perf_counter()
        version = await self._find_version(call.inputs)
        answer = await version.submit(InferRequest(call.tensors, call.outputs))
        specs = version.signature.output_of
        tensors = [
            RawTensor(name, specs[name].datatype, (answer.rows, *specs[name].row_shape), data)
            for name, data in zip(answer.names, answer.outputs, strict=True)
        ]
        timing = {**answer.timing._asdict(), "total": _microseconds_since(started)}
        return InferAnswer(tensors=tensors, timing_us=timing)


def check_one_kind(call: InferCall) -> None:
    """Raise ``InvalidArgument`` unless the call has exactly one of rows by position, rows by name, and tensors."""
    if sum(map(bool, (call.rows, call.tensors, call.table))) != 1:
        what = "both rows and tensors" if call.tensors else "neither rows nor tensors"
        raise InvalidArgument(f"the request has {what}; expected exactly one, not empty", field="rows")


def _microseconds_since(started: float) -> int:
    return round((time.perf_counter() - started) * 1e6)
