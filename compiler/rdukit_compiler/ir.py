"""The traced model as a graph of torch-function-level operators: rules match it, passes rewrite it, and sections divide
it.

A value is a tensor with a name; an operator reads values and writes one or more. The order of operators can be
executed. Everything is immutable: a pass returns a new graph.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import prod
from typing import Literal

from rdukit.errors import InvalidGraph
from rdukit.pef.kernel import Argument, references
from rdukit.pef.model import ITEM_BYTES, Dtype


class ValueKind(StrEnum):
    """Origin of a graph's value."""

    INPUT = "input"
    PARAMETER = "parameter"
    BUFFER = "buffer"
    OPERATOR = "operator"


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor: its dtype, and its static shape in elements.

    ``is_exact``: operators read this graph input unrounded, not in the dtype in which the device computes.
    """

    name: str
    kind: ValueKind
    dtype: Dtype
    shape: tuple[int, ...]
    requires_grad: bool = False
    is_exact: bool = False

    @property
    def elements(self) -> int:
        return prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.elements * ITEM_BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class ComputeDtypes:
    """Dtypes of an operator's arithmetic, by their torch names.

    ``operands``: dtypes to which its floating operands are rounded, in succession. ``result``: dtype to which its
    results are rounded; empty if they are not.
    """

    operands: tuple[Dtype, ...]
    result: Dtype | Literal[""] = ""


@dataclass(frozen=True, slots=True)
class Operator:
    """Operator call.

    ``op`` is the ATen name (``aten.linear.default``); ``op_type`` is the word that fusion rules use (``linear``).
    ``args`` and ``kwargs`` name values by ``Ref``. ``outputs`` are the values it makes (more than one for ``split``).
    ``module`` is the path of the innermost module that called it ("" for the model's own forward); ``labels`` are
    directives that were active there, such as ``op_fusion`` groups. ``compute``: None computes in the operands'
    own dtypes.
    ``names_dtype``: the program named a dtype argument itself, instead of reading it from a tensor.
    ``is_of_loss``: a loss function of torch that consists of several operators called it.
    ``chip``: number of the chip that computes it; -1 is the host.
    """

    name: str
    op: str
    op_type: str
    args: tuple[Argument, ...]
    kwargs: Mapping[str, Argument]
    outputs: tuple[str, ...]
    module: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    compute: ComputeDtypes | None = None
    names_dtype: bool = False
    is_of_loss: bool = False
    chip: int = 0

    @property
    def inputs(self) -> tuple[str, ...]:
        """Return the distinct names of the values that are read, in order."""
        return tuple(dict.fromkeys(references([*self.args, *self.kwargs.values()])))


@dataclass(frozen=True, slots=True)
class ChipPiece:
    """Rows of the parameter or input ``parent``, from ``start`` on, that one chip holds."""

    parent: str
    start: int
    chip: int


@dataclass(frozen=True, slots=True)
class ModelGraph:
    """A traced forward pass. ``values`` holds every value by name, inputs and parameters included.

    ``updates``: buffer → the value that forward leaves in it; no operator reads that value. ``rates``: buffer → its
    dropout rate, which a run may change. In a graph over several ``chips``, ``pieces`` are values that are rows of
    others, and ``replicated`` maps operators that every chip computes whole to the reason.
    """

    name: str
    values: Mapping[str, Value]
    operators: tuple[Operator, ...]
    outputs: tuple[str, ...]
    updates: Mapping[str, str] = field(default_factory=dict)
    rates: Mapping[str, float] = field(default_factory=dict)
    chips: int = 1
    pieces: Mapping[str, ChipPiece] = field(default_factory=dict)
    replicated: Mapping[str, str] = field(default_factory=dict)

    def producers(self) -> dict[str, Operator]:
        """Map each value name to the operator that makes it; graph inputs are absent."""
        return {output: operator for operator in self.operators for output in operator.outputs}

    def consumers(self) -> dict[str, tuple[Operator, ...]]:
        """Map each value name to the operators that read it, in graph order; unread values map to ()."""
        found: dict[str, list[Operator]] = {name: [] for name in self.values}
        for operator in self.operators:
            for name in operator.inputs:
                found[name].append(operator)
        return {name: tuple(operators) for name, operators in found.items()}

    def of_kind(self, *kinds: ValueKind) -> Iterator[Value]:
        """Return the values of these kinds, in the order in which they were defined."""
        return (value for value in self.values.values() if value.kind in kinds)


def check_graph(graph: ModelGraph, after: str) -> None:
    """Check the spec that every pass must leave true.

    Names are unique and defined before use; each operator value has exactly one producer; outputs exist; dtypes are
    known.

    Raises:
        InvalidGraph: the spec is violated; the message names the pass ``after`` which this was found.
    """
    known = {value.name for value in graph.values.values() if value.kind is not ValueKind.OPERATOR}
    seen: set[str] = set()
    for operator in graph.operators:
        if operator.name in seen:
            raise InvalidGraph(f"after {after}: two operators are called {operator.name!r}")
        seen.add(operator.name)
        for name in operator.inputs:
            if name not in known:
                raise InvalidGraph(f"after {after}: {operator.name!r} reads {name!r} before it is made")
        for name in operator.outputs:
            if name in known or name not in graph.values:
                raise InvalidGraph(
                    f"after {after}: {operator.name!r} makes {name!r}, which is made twice or not listed"
                )
            known.add(name)
    for name in (*graph.outputs, *graph.updates.values()):
        if name not in known:
            raise InvalidGraph(f"after {after}: output {name!r} is never made")
    for key, value in graph.values.items():
        if key != value.name or value.dtype not in ITEM_BYTES:
            raise InvalidGraph(f"after {after}: value {key!r} is listed as {value.name!r} with dtype {value.dtype!r}")
