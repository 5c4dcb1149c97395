"""A served model's inputs and outputs: datatypes, signature, and the protocols' requests and responses with names,
shapes and raw bytes.

Both processes share these values. Source: Open Inference Protocol v2, "Tensor Data Types".
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any, Final, NamedTuple, Protocol


@dataclass(frozen=True, slots=True)
class Datatype:
    """Element type of fixed size. ``array_code`` is None if JSON cannot hold the type (FP16, BF16)."""

    name: str
    size: int
    torch_name: str
    array_code: str | None


DATATYPES: Final[Mapping[str, Datatype]] = {
    datatype.name: datatype
    for datatype in (
        Datatype("BOOL", 1, "bool", "B"),
        Datatype("UINT8", 1, "uint8", "B"),
        Datatype("INT8", 1, "int8", "b"),
        Datatype("INT16", 2, "int16", "h"),
        Datatype("INT32", 4, "int32", "i"),
        Datatype("INT64", 8, "int64", "q"),
        Datatype("FP16", 2, "float16", None),
        Datatype("BF16", 2, "bfloat16", None),
        Datatype("FP32", 4, "float32", "f"),
        Datatype("FP64", 8, "float64", "d"),
    )
}

#: Names of the protocol's datatypes, including those that no model here uses.
KNOWN: Final = frozenset({*DATATYPES, "UINT16", "UINT32", "UINT64", "BYTES"})

BY_TORCH_NAME: Final[Mapping[str, Datatype]] = {datatype.torch_name: datatype for datatype in DATATYPES.values()}


@dataclass(frozen=True)
class ServedTensor:
    """Served tensor. ``row_shape`` is its shape without the batch dimension, which comes first."""

    name: str
    datatype: str
    row_shape: tuple[int, ...]
    #: The PEF's symbol behind it.
    symbol: str
    #: Number of rows that an input of indices chooses from; ``None``: any number is valid.
    rows_of_table: int | None = None

    @cached_property
    def type(self) -> Datatype:
        """Return its element type."""
        return DATATYPES[self.datatype]

    @cached_property
    def row_elements(self) -> int:
        """Return the elements in one row."""
        return prod(self.row_shape)

    @cached_property
    def row_bytes(self) -> int:
        """Return the bytes of one row."""
        return self.row_elements * self.type.size

    def metadata(self) -> dict[str, object]:
        """Return the protocol's model metadata; -1 is the batch dimension."""
        return {"name": self.name, "datatype": self.datatype, "shape": [-1, *self.row_shape]}


@dataclass(frozen=True)
class ServedSignature:
    """Inputs and outputs of one loaded model, and the largest number of rows per call."""

    inputs: tuple[ServedTensor, ...]
    outputs: tuple[ServedTensor, ...]
    #: Rows of every call of the device.
    batch: int
    #: Most rows that are filled.
    max_batch: int
    #: Names of the classes, in the order of the last dimension of the first output; empty when there are none.
    labels: tuple[str, ...] = ()
    #: For people: chip, mode, precision, kernels, seconds that loading took.
    properties: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def input_of(self) -> Mapping[str, ServedTensor]:
        """Return inputs by name."""
        return {spec.name: spec for spec in self.inputs}

    @cached_property
    def has_indices(self) -> bool:
        """Return whether an input's numbers choose rows of a table."""
        return any(spec.rows_of_table is not None for spec in self.inputs)

    @cached_property
    def output_of(self) -> Mapping[str, ServedTensor]:
        """Return outputs by name."""
        return {spec.name: spec for spec in self.outputs}

    @cached_property
    def offsets(self) -> Mapping[str, int]:
        """Return the offset of each tensor's batch in shared memory; each a multiple of 64 bytes."""
        places, at = {}, 0
        for spec in (*self.inputs, *self.outputs):
            places[spec.name if spec in self.inputs else f"output/{spec.name}"] = at
            at += -(-spec.row_bytes * self.batch // 64) * 64
        return {**places, "": at}

    @property
    def shared_bytes(self) -> int:
        """Return the size of the shared memory."""
        return max(64, self.offsets[""])

    def to_json(self) -> dict[str, Any]:
        """Encode for ``from_json`` in the other process."""
        return {
            "inputs": [_spec_to_json(spec) for spec in self.inputs],
            "outputs": [_spec_to_json(spec) for spec in self.outputs],
            "batch": self.batch, "max_batch": self.max_batch, "labels": list(self.labels),
            "properties": dict(self.properties),
        }  # fmt: skip

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "ServedSignature":
        """Decode what ``to_json`` encoded."""
        return cls(
            _specs_from_json(value["inputs"]), _specs_from_json(value["outputs"]), int(value["batch"]),
            int(value["max_batch"]), tuple(value["labels"]), dict(value["properties"]),
        )  # fmt: skip


def _spec_to_json(spec: ServedTensor) -> list[Any]:
    return [spec.name, spec.datatype, list(spec.row_shape), spec.symbol, spec.rows_of_table]


def _specs_from_json(values: Sequence[Sequence[Any]]) -> tuple[ServedTensor, ...]:
    return tuple(
        ServedTensor(name, datatype, tuple(shape), symbol, rows) for name, datatype, shape, symbol, rows in values
    )


class RawTensor(NamedTuple):
    """Tensor on the wire: its bytes are little-endian and row-major."""

    name: str
    datatype: str
    shape: Sequence[int]
    data: bytes | memoryview


@dataclass(slots=True)
class InferRequest:
    """Inference request. ``outputs`` restricts the answer; empty means all."""

    inputs: Sequence[RawTensor]
    outputs: Sequence[str] = ()
    id: str = ""
    #: Output -> number of its likeliest classes that are wanted instead of its numbers.
    classes: Mapping[str, int] | None = None
    #: Microseconds that the caller waits for an answer; 0: no limit.
    timeout_us: int = 0


class RequestTiming(NamedTuple):
    """Times of a request, in microseconds, and its batch."""

    queue: int
    copy_in: int
    compute: int
    copy_out: int
    #: Forming the batch in memory, and from there until the device had run it.
    form: int = 0
    device: int = 0
    #: Requests and rows of the batch, and the rows that it may have.
    requests: int = 1
    batch_rows: int = 0
    most_rows: int = 0


class InferResponse(NamedTuple):
    """Outputs in the requested order, as bytes of ``rows`` rows each."""

    rows: int
    outputs: Sequence[bytes]
    names: Sequence[str]
    timing: RequestTiming


class Reply(Protocol):
    """Receiver of a response: an ``asyncio.Future``, or an object that writes the response at once."""

    def done(self) -> bool:
        """Return whether it is answered, or no caller waits."""

    def set_result(self, answer: InferResponse, /) -> None:
        """Deliver the response."""

    def set_exception(self, error: Exception, /) -> None:
        """Deliver the error instead of a response."""
