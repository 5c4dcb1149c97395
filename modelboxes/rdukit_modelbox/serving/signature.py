"""What a served model takes and gives, as values that both processes share."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any

from rdukit_modelbox.serving.datatypes import DATATYPES, Datatype


@dataclass(frozen=True)
class TensorSpec:
    """One served tensor. ``row_shape`` is its shape without the batch dimension, which comes first."""

    name: str
    datatype: str
    row_shape: tuple[int, ...]
    #: The PEF's symbol behind it.
    symbol: str
    #: Of an input of indices: how many rows they choose from; None: any number is legal.
    rows_of_table: int | None = None

    @cached_property
    def type(self) -> Datatype:
        """Its element type."""
        return DATATYPES[self.datatype]

    @cached_property
    def row_elements(self) -> int:
        """Elements in one row."""
        return prod(self.row_shape)

    @cached_property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return self.row_elements * self.type.size

    def metadata(self) -> dict[str, object]:
        """As the protocol's model metadata names it; -1 is the batch dimension."""
        return {"name": self.name, "datatype": self.datatype, "shape": [-1, *self.row_shape]}


@dataclass(frozen=True)
class Signature:
    """Inputs and outputs of one loaded model, and the most rows of one call."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    #: Rows of every call of the device.
    batch: int
    #: Most rows that are filled.
    max_batch: int
    #: Names of the classes, in the order of the last dimension of the first output; empty when there are none.
    labels: tuple[str, ...] = ()
    #: For people: chip, mode, precision, kernels, seconds that loading took.
    properties: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def input_of(self) -> Mapping[str, TensorSpec]:
        """Inputs by name."""
        return {spec.name: spec for spec in self.inputs}

    @cached_property
    def has_indices(self) -> bool:
        """Whether an input's numbers choose rows of a table."""
        return any(spec.rows_of_table is not None for spec in self.inputs)

    @cached_property
    def output_of(self) -> Mapping[str, TensorSpec]:
        """Outputs by name."""
        return {spec.name: spec for spec in self.outputs}

    @cached_property
    def offsets(self) -> Mapping[str, int]:
        """Where each tensor's whole batch begins in the shared memory; each at a multiple of 64 bytes."""
        places, at = {}, 0
        for spec in (*self.inputs, *self.outputs):
            places[spec.name if spec in self.inputs else f"output/{spec.name}"] = at
            at += -(-spec.row_bytes * self.batch // 64) * 64
        return {**places, "": at}

    @property
    def shared_bytes(self) -> int:
        """Size of the shared memory."""
        return max(64, self.offsets[""])

    def to_json(self) -> dict[str, Any]:
        """For ``from_json`` in the other process."""
        return {
            "inputs": [_spec_to_json(spec) for spec in self.inputs],
            "outputs": [_spec_to_json(spec) for spec in self.outputs],
            "batch": self.batch, "max_batch": self.max_batch, "labels": list(self.labels),
            "properties": dict(self.properties),
        }  # fmt: skip

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Signature":
        """What ``to_json`` said."""
        return cls(
            _specs_from_json(value["inputs"]), _specs_from_json(value["outputs"]), int(value["batch"]),
            int(value["max_batch"]), tuple(value["labels"]), dict(value["properties"]),
        )  # fmt: skip


def _spec_to_json(spec: TensorSpec) -> list[Any]:
    return [spec.name, spec.datatype, list(spec.row_shape), spec.symbol, spec.rows_of_table]


def _specs_from_json(values: Sequence[Sequence[Any]]) -> tuple[TensorSpec, ...]:
    return tuple(
        TensorSpec(name, datatype, tuple(shape), symbol, rows) for name, datatype, shape, symbol, rows in values
    )
