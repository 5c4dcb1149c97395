"""A section's kernel as a portable graph: operators by name, tensors by name, shapes static.

This graph defines a section; native libraries are built from it, and running it always can replace them. Operators
are ATen names (``aten.linear.default``) or our own (``rdukit.sgd``).
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod
from typing import Final, NamedTuple

from rdukit.errors import PefCorrupt
from rdukit.files.atomic import sha256_of


class OperatorName(NamedTuple):
    """Parts of an operator's name: ``aten.add_.Tensor`` has three, ``rdukit.sgd`` no overload, ``getitem`` a word."""

    namespace: str
    word: str
    overload: str = ""

    def __str__(self) -> str:
        return ".".join(part for part in self if part)

    @property
    def is_in_place(self) -> bool:
        """Return whether torch's name marks a write to the first argument: ``aten.add_.Tensor``."""
        return self.namespace == "aten" and self.word.endswith("_")


@lru_cache(maxsize=4096)
def parse_operator(op: str) -> OperatorName:
    """Return the parts of an operator's name; the overload is everything after the second dot."""
    namespace, dot, rest = op.partition(".")
    word, _, overload = rest.partition(".")
    return OperatorName(namespace, word, overload) if dot else OperatorName("", op)


@dataclass(frozen=True, slots=True)
class Ref:
    """A reference to the value called ``name`` among an operator's arguments."""

    name: str


@dataclass(frozen=True, slots=True)
class Special:
    """An argument that JSON lacks: ``kind`` is dtype, device, memory_format, layout, float, complex or scalar.

    ``text`` is its name (``float32``, ``cpu``, ``inf``, ``1j``); for a scalar, that of the hyperparameter (``lr``).
    """

    kind: str
    text: str


#: Type of an operator's argument.
Argument = None | bool | int | float | str | Ref | Special | list["Argument"]

SPECIAL_KINDS: Final = frozenset({"dtype", "device", "memory_format", "layout", "float", "complex", "scalar"})


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A kernel's input: dtype by its torch name (``float32``), shape, and strides in elements."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]


def packed_stride(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a contiguous tensor, in elements."""
    return tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))


def packed_spec(name: str, dtype: str, shape: tuple[int, ...]) -> TensorSpec:
    """Return the spec of a contiguous tensor."""
    return TensorSpec(name, dtype, shape, packed_stride(shape))


@dataclass(frozen=True, slots=True)
class KernelNode:
    """An operator call. ``getitem`` takes (tuple value, index)."""

    name: str
    op: str
    args: tuple[Argument, ...]
    kwargs: Mapping[str, Argument] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class KernelGraph:
    """Inputs, operator calls in executable order, and outputs. An output ``None`` is absent."""

    inputs: tuple[TensorSpec, ...]
    nodes: tuple[KernelNode, ...]
    outputs: tuple[str | None, ...]

    def to_json(self) -> bytes:
        """Return canonical JSON: equal graphs give equal bytes."""
        value = {
            "inputs": [[t.name, t.dtype, list(t.shape), list(t.stride)] for t in self.inputs],
            "nodes": [
                [n.name, n.op, [_encode(a) for a in n.args], {k: _encode(v) for k, v in n.kwargs.items()}]
                for n in self.nodes
            ],
            "outputs": list(self.outputs),
        }
        return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()

    def digest(self) -> str:
        """Return the SHA-256 of the canonical JSON: the kernel's name in a PEF and in the kernel cache."""
        return sha256_of(self.to_json())


def kernel_from_json(data: bytes) -> KernelGraph:
    """Read the result of ``KernelGraph.to_json`` and check that every name is defined before it is used.

    Raises:
        PefCorrupt: the bytes are not a kernel graph.
    """
    try:
        value = json.loads(data)
        graph = KernelGraph(
            inputs=tuple(
                TensorSpec(_text(n), _text(d), tuple(map(int, s)), tuple(map(int, t))) for n, d, s, t in value["inputs"]
            ),
            nodes=tuple(
                KernelNode(
                    _text(name), _text(op), tuple(_decode(a) for a in args), {k: _decode(v) for k, v in kwargs.items()}
                )
                for name, op, args, kwargs in value["nodes"]
            ),
            outputs=tuple(None if name is None else _text(name) for name in value["outputs"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as cause:
        raise PefCorrupt(f"a kernel of the PEF is not readable: {cause}") from cause
    check_kernel(graph)
    return graph


def check_kernel(graph: KernelGraph) -> None:
    """Check that names are unique and defined before use.

    Raises:
        PefCorrupt: a name is repeated or undefined.
    """
    known: set[str] = set()
    for name in [t.name for t in graph.inputs]:
        if name in known:
            raise PefCorrupt(f"kernel input {name!r} is defined twice")
        known.add(name)
    for node in graph.nodes:
        for used in references([*node.args, *node.kwargs.values()]):
            if used not in known:
                raise PefCorrupt(f"kernel node {node.name!r} uses {used!r}, which is not defined before it")
        if node.name in known:
            raise PefCorrupt(f"kernel node {node.name!r} is defined twice")
        known.add(node.name)
    for output in graph.outputs:
        if output is not None and output not in known:
            raise PefCorrupt(f"kernel output {output!r} is not defined")


def references(arguments: Sequence[Argument]) -> list[str]:
    """Return the names of all values among ``arguments``, in order, nested lists included."""
    found: list[str] = []
    for argument in arguments:
        if isinstance(argument, Ref):
            found.append(argument.name)
        elif isinstance(argument, list):
            found.extend(references(argument))
    return found


def rename_references(argument: Argument, names: Mapping[str, str]) -> Argument:
    """Rename the values in ``argument`` by ``names``, also in nested lists; other names stay."""
    match argument:
        case Ref(name):
            return Ref(names.get(name, name))
        case list():
            return [rename_references(item, names) for item in argument]
        case _:
            return argument


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"a name is of type {type(value).__name__}")
    return value


def _encode(argument: Argument) -> object:
    match argument:
        case Ref(name):
            return {"ref": name}
        case Special(kind, text):
            return {kind: text}
        case list():
            return [_encode(a) for a in argument]
        case _:
            return argument


def _decode(value: object) -> Argument:
    if isinstance(value, dict):
        ((kind, text),) = value.items()
        if kind == "ref":
            return Ref(str(text))
        if kind not in SPECIAL_KINDS:
            raise ValueError(f"argument kind {kind!r}; expected ref, {', '.join(sorted(SPECIAL_KINDS))}")
        return Special(str(kind), str(text))
    if isinstance(value, list):
        return [_decode(v) for v in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"argument of type {type(value).__name__}")
