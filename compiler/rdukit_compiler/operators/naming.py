"""Names of operators and arguments in graphs, and torch's objects for them."""

import operator
from collections.abc import Callable, Mapping
from typing import Any, Final, cast

import torch
from torch import fx

from rdukit.errors import UnsupportedOperator
from rdukit.pef.kernel import Argument, OperatorName, Ref, Special, parse_operator
from rdukit.pef.model import Dtype
from rdukit_compiler.torch_private import OpOverload

GETITEM = "getitem"

#: torch's name of a Python operator on integers → the ATen operator, which a PEF may hold.
_PYTHON_WORDS: Final[Mapping[str, str]] = {
    f"aten.__{mark}{python}__.{kind}": f"aten.{own}{'_' if mark else ''}.{kind if kind == 'Tensor' else scalar}"
    for python, own, scalar in (
        ("and", "bitwise_and", "Scalar"), ("or", "bitwise_or", "Scalar"), ("xor", "bitwise_xor", "Scalar"),
        ("lshift", "bitwise_left_shift", "Tensor_Scalar"), ("rshift", "bitwise_right_shift", "Tensor_Scalar"),
    )
    for mark in ("", "i")
    for kind in ("Tensor", "Scalar")
}  # fmt: skip


def callable_of(op: str) -> Callable[..., Any]:
    """Return torch's callable: ``aten.linear.default`` → the ATen overload; ``getitem`` → Python's.

    Raises:
        UnsupportedOperator: torch has no such operator.
    """
    if op == GETITEM:
        return operator.getitem
    found: Any = torch.ops
    for part in filter(None, parse_operator(op)):
        try:
            found = getattr(found, part)
        except AttributeError as cause:
            raise UnsupportedOperator(f"operator {op!r} does not exist in torch {torch.__version__}") from cause
    return found  # type: ignore[no-any-return]


def define_operators(signatures: Mapping[str, str], shapes: Mapping[str, Callable[..., Any]]) -> torch.library.Library:
    """Define operators ``rdukit::<name>`` for tracing, without an implementation; they exist as long as the library.

    Args:
        signatures: by name, in torch's schema language. shapes: functions that return each operator's result for fake
            tensors.
    """
    library = torch.library.Library("rdukit", "FRAGMENT")  # type: ignore[no-untyped-call]
    for name, signature in signatures.items():
        library.define(f"{name}{signature}")  # type: ignore[no-untyped-call]
        torch.library.register_fake(f"rdukit::{name}", shapes[name], lib=library)
    return library


def name_of(target: object) -> str:
    """Invert ``callable_of``, for a node of a torch graph."""
    if target is operator.getitem:
        return GETITEM
    if isinstance(target, OpOverload):
        return _PYTHON_WORDS.get(name := str(target), name)
    raise UnsupportedOperator(f"{target!r} cannot be compiled: it is Python code, not a torch operator")


def find_functional(op: str) -> str | None:
    """Find the functional operator with the same arguments: ``aten.relu_.default`` → ``aten.relu.default``."""
    name = parse_operator(op)
    word = name.word.removesuffix("_")
    packet: Any = getattr(getattr(torch.ops, name.namespace), word, None)
    if packet is None:
        return None
    wanted, known = _arguments_of(callable_of(op)), packet.overloads()
    for other in (name.overload, *known):
        found = getattr(packet, other) if other in known else None
        if found is not None and not found._schema.is_mutable and _arguments_of(found) == wanted:
            return str(OperatorName(name.namespace, word, other))
    return None


def _arguments_of(overload: Any) -> list[tuple[str, str]]:
    """Return the arguments' types, and all names but the first, in which ``dropout_`` and ``dropout`` differ."""
    return [(a.name if place else "", str(a.type)) for place, a in enumerate(overload._schema.arguments)]


def decode(argument: Argument, values: Mapping[str, Any]) -> Any:
    """Return an argument as torch takes it; ``values`` gives the tensors by name."""
    match argument:
        case Ref(name):
            return values[name]
        case Special(kind, text):
            return decode_special(kind, text)
        case list():
            return [decode(item, values) for item in argument]
        case _:
            return argument


def decode_special(kind: str, text: str) -> Any:
    """Return the torch object that a ``Special`` names. Run-time scalars have no such object."""
    match kind:
        case "dtype" | "memory_format" | "layout":
            return getattr(torch, text)
        case "device":
            return torch.device(text)
        case "float":
            return float(text)
        case "complex":
            return complex(text)
        case _:
            raise UnsupportedOperator(f"argument kind {kind!r} has no value while compiling")


def encode(value: Any, name_of_value: Callable[[Any], str | None]) -> Argument:
    """Invert ``decode``; ``name_of_value`` says which objects are values of the graph.

    Raises:
        UnsupportedOperator: the argument is of a type that a graph cannot hold.
    """
    if (name := name_of_value(value)) is not None:
        return Ref(name)
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if value == value and abs(value) != float("inf") else Special("float", str(value))
        case complex():
            return Special("complex", str(value))
        case torch.dtype():
            return Special("dtype", dtype_name(value))
        case torch.device():
            return Special("device", str(value))
        case torch.memory_format():
            return Special("memory_format", str(value).removeprefix("torch."))
        case torch.layout():
            return Special("layout", str(value).removeprefix("torch."))
        case list() | tuple():
            return [encode(item, name_of_value) for item in value]
        case torch.SymInt() | torch.SymFloat() | torch.SymBool():
            raise UnsupportedOperator(f"the size {value} is not static; RDU graphs have static shapes only")
        case _:
            raise UnsupportedOperator(f"an argument of type {type(value).__name__} cannot be compiled: {value!r}")


def dtype_name(dtype: torch.dtype) -> Dtype:
    """Return a dtype's name: ``torch.float32`` → ``float32``. Graphs refuse the dtypes that ``Dtype`` lacks."""
    return cast(Dtype, str(dtype).removeprefix("torch."))


def aten_word(target: object) -> str:
    """Return the word of an ATen operator: ``linear`` for ``aten.linear.default``; "" for everything else."""
    name = parse_operator(str(target))
    return name.word if name.namespace == "aten" else ""


def aten_names(module: fx.GraphModule) -> set[str]:
    """Return the ATen operators that a graph calls, without overloads: ``linear`` for ``aten.linear.default``."""
    words = {aten_word(node.target) for node in module.graph.nodes if node.op == "call_function"}
    return words - {""}
