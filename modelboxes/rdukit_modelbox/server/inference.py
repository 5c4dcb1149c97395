"""Synchronous inference for ``Infer`` and ``InferStream`` of both wires. Axes: N rows, F features, C classes."""

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from rdukit.errors import InvalidArgument
from rdukit_serving.models.version import ModelVersion
from rdukit_serving.signature import InferRequest, RawTensor

Rows = list[list[float]]
RowsFunction = Callable[[Sequence[Sequence[float]], Mapping[str, str]], Awaitable[tuple[Rows, list[int]]]]
FindVersion = Callable[[Mapping[str, str]], Awaitable[ModelVersion]]


@dataclass(frozen=True, slots=True)
class InferCall:
    """A request to infer: rows or tensors, exactly one of them; ``inputs`` may name ``pef`` and ``checkpoint``.

    ``outputs`` restricts the answer's tensors; empty: all.
    """

    rows: Sequence[Sequence[float]] = ()
    tensors: Sequence[RawTensor] = ()
    inputs: Mapping[str, str] = field(default_factory=dict)
    outputs: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class InferAnswer:
    """Rows [N][C] and labels [N] for rows, tensors for tensors; ``timing_us``: durations of its parts."""

    rows: Rows = field(default_factory=list)
    labels: Sequence[int] = ()
    tensors: Sequence[RawTensor] = ()
    timing_us: Mapping[str, int] = field(default_factory=dict)


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
    """Inferencer that uses the box's served models: rows by a function, tensors by their signature."""

    def __init__(self, infer_rows: RowsFunction, find_version: FindVersion) -> None:
        """``find_version``: returns the model for ``inputs``."""
        self._infer_rows = infer_rows
        self._find_version = find_version

    async def infer(self, call: InferCall) -> InferAnswer:
        """Infer as ``Inferencer.infer`` says."""
        check_one_kind(call)
        try:
            return await (self._rows(call) if call.rows else self._tensors(call))
        except InvalidArgument as error:
            error.detail.setdefault("field", "rows" if call.rows else "tensors")
            raise

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
    """Raise ``InvalidArgument`` unless there are rows or tensors, and not both."""
    if bool(call.rows) == bool(call.tensors):
        what = "both rows and tensors" if call.rows else "neither rows nor tensors"
        raise InvalidArgument(f"the request has {what}; legal: one of them, not empty", field="rows")


def _microseconds_since(started: float) -> int:
    return round((time.perf_counter() - started) * 1e6)
