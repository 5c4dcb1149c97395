"""Inference at once, as both wires' ``Infer`` and ``InferStream`` ask for it. Axes: N rows, F features, C classes."""

import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

import numpy as np

from rdukit.errors import InvalidArgument

#: Names and element types that a tensor may have: those of the Open Inference Protocol that numpy can hold.
NUMPY_OF: Final[Mapping[str, str]] = {
    "BOOL": "?", "UINT8": "<u1", "UINT16": "<u2", "UINT32": "<u4", "UINT64": "<u8",
    "INT8": "<i1", "INT16": "<i2", "INT32": "<i4", "INT64": "<i8", "FP16": "<f2", "FP32": "<f4", "FP64": "<f8",
}  # fmt: skip

Rows = list[list[float]]
RowsFunction = Callable[[Sequence[Sequence[float]], Mapping[str, str]], Awaitable[tuple[Rows, list[int]]]]


class Tensor(NamedTuple):
    """A tensor on the wire: bytes are little-endian and row-major."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: bytes


@dataclass(frozen=True, slots=True)
class InferCall:
    """What to infer: rows or tensors, exactly one of them; ``inputs`` may name ``pef`` and ``checkpoint``.

    ``outputs`` restricts the answer's tensors; empty: all.
    """

    rows: Sequence[Sequence[float]] = ()
    tensors: Sequence[Tensor] = ()
    inputs: Mapping[str, str] = field(default_factory=dict)
    outputs: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class InferAnswer:
    """Rows [N][C] and labels [N] for rows, tensors for tensors; ``timing_us``: where the time went."""

    rows: Rows = field(default_factory=list)
    labels: Sequence[int] = ()
    tensors: Sequence[Tensor] = ()
    timing_us: Mapping[str, int] = field(default_factory=dict)


class Inferencer(Protocol):
    """What answers."""

    async def infer(self, call: InferCall) -> InferAnswer:
        """Answer at once. Cancelling it cancels the work.

        Raises:
            InvalidArgument, NotFound: the request is wrong; the detail's ``field`` says where.
            NoResources, Unavailable: not now.
        """
        ...


class RowsInferencer:
    """Answers by a function for rows. Takes one tensor FP32 [N, F] and gives ``logits`` [N, C] and ``labels`` [N]."""

    def __init__(self, infer_rows: RowsFunction) -> None:
        self._infer_rows = infer_rows

    async def infer(self, call: InferCall) -> InferAnswer:
        """As ``Inferencer.infer``."""
        check_one_kind(call)
        started = time.perf_counter()
        rows = call.rows if call.rows else rows_of(call.tensors)
        outputs, labels = await self._infer_rows(rows, call.inputs)
        timing = {"total": round((time.perf_counter() - started) * 1e6)}
        if call.rows:
            return InferAnswer(rows=outputs, labels=labels, timing_us=timing)
        logits_NC = np.asarray(outputs, "<f4")
        tensors = [
            Tensor("logits", "FP32", logits_NC.shape, logits_NC.tobytes()),
            Tensor("labels", "INT64", (len(labels),), np.asarray(labels, "<i8").tobytes()),
        ]
        names = [tensor.name for tensor in tensors]
        for at, name in enumerate(call.outputs):
            if name not in names:
                raise InvalidArgument(
                    f"outputs: there is no {name!r}; legal: {', '.join(names)}", field=f"outputs.{at}"
                )
        wanted = [t for t in tensors if not call.outputs or t.name in call.outputs]
        return InferAnswer(tensors=wanted, timing_us=timing)


def check_one_kind(call: InferCall) -> None:
    """Raises ``InvalidArgument`` unless there are rows or tensors, and not both."""
    if bool(call.rows) == bool(call.tensors):
        what = "both rows and tensors" if call.rows else "neither rows nor tensors"
        raise InvalidArgument(f"the request has {what}; legal: one of them, not empty", field="rows")


def check_tensor(tensor: Tensor, at: str) -> None:
    """Raises ``InvalidArgument`` unless type, shape and number of bytes agree; ``at`` is its place in the request."""
    if tensor.datatype not in NUMPY_OF:
        message = f"{at}.datatype: {tensor.datatype[:80]!r} is not legal; legal: {', '.join(NUMPY_OF)}"
        raise InvalidArgument(message, field=f"{at}.datatype", legal=list(NUMPY_OF))
    if any(size < 0 for size in tensor.shape):
        raise InvalidArgument(f"{at}.shape: {list(tensor.shape)} has a negative size", field=f"{at}.shape")
    needed = math.prod(tensor.shape) * np.dtype(NUMPY_OF[tensor.datatype]).itemsize
    if needed != len(tensor.data):
        raise InvalidArgument(
            f"{at}.data: {len(tensor.data)} bytes; {tensor.datatype} {list(tensor.shape)} has {needed}",
            field=f"{at}.data",
        )


def rows_of(tensors: Sequence[Tensor]) -> Rows:
    """Rows [N][F] of the one tensor FP32 [N, F].

    Raises:
        InvalidArgument: there are more, or it is another kind.
    """
    if len(tensors) != 1:
        raise InvalidArgument(f"{len(tensors)} tensors; this box takes one, FP32 [rows, features]", field="tensors")
    tensor = tensors[0]
    check_tensor(tensor, "tensors.0")
    if tensor.datatype != "FP32" or len(tensor.shape) != 2:
        message = f"tensors.0: {tensor.datatype} {list(tensor.shape)} is not legal; legal: FP32 [rows, features]"
        raise InvalidArgument(message, field="tensors.0.shape" if tensor.datatype == "FP32" else "tensors.0.datatype")
    rows: Rows = np.frombuffer(tensor.data, "<f4").reshape(tensor.shape).tolist()
    return rows
