"""The operators that a PEF may name, and their arguments: a PEF is untrusted data.

``operators.txt`` has a line for each operator that the compiler emits; all others are refused::

    aten.add.Tensor self:tensor other:tensor | alpha:scalar=

Positional parameters come before the bar, keyword parameters after it; ``=`` marks a default. Kinds are those of
torch's schemas; ``[]`` is a list, ``?`` may be absent. Texts are words (``WORDS``); files, storages and random
generators are not allowed. ``scripts/pef_operators.py`` writes the lines; to add an operator, add its
name with the reason in the change.
"""

import math
import re
from collections.abc import Callable, Mapping
from functools import cache
from importlib.resources import files
from typing import Final, NamedTuple

from rdukit.errors import PefCorrupt, PefNotAllowed
from rdukit.pef.kernel import Argument, KernelGraph, KernelNode, Ref, Special, parse_operator
from rdukit.pef.model import ITEM_BYTES

#: Selects one of several tensors; it does not belong to a library.
GETITEM: Final = "getitem"

#: Namespaces that torch registers itself (2.13). Other namespaces belong to a program's own libraries.
TORCH_NAMESPACES: Final = frozenset(
    "_c10d_functional _c10d_functional_autograd _dtensor _inductor_test _native _quantized _test aten c10d "
    "c10d_functional debug_mode_ops debugprims export flex_lib fsdp inductor inductor_prims mkl mkldnn "
    "mkldnn_prepacked onednn onnx onnx_symbolic prim prims profiler quantization quantized rngprims sparse "
    "static_runtime streams symm_mem rdukit".split()
)

#: Text parameter → its allowed words. The listed operators of torch have no other text parameters.
WORDS: Final[Mapping[str, frozenset[str]]] = {
    "approximate": frozenset({"none", "tanh"}),
    "driver": frozenset({"gesvd", "gesvdj", "gesvda", "gels", "gelsy", "gelsd", "gelss"}),
    "indexing": frozenset({"ij", "xy"}),
    "mode": frozenset(
        {"constant", "reflect", "replicate", "circular", "reduced", "complete", "r", "nearest", "bilinear", "bicubic"}
    ),
    "ord": frozenset({"fro", "nuc"}),
    "padding": frozenset({"valid", "same"}),
    "reduce": frozenset({"sum", "prod", "mean", "amax", "amin", "max", "min", "add", "multiply"}),
    "rounding_mode": frozenset({"trunc", "floor"}),
    "side": frozenset({"left", "right"}),
    "UPLO": frozenset({"L", "U"}),
    "interpolation": frozenset({"linear", "lower", "higher", "midpoint", "nearest"}),
}
#: Parameters of free text: Einstein's notation, locations of conditions in a program, names in messages.
TEXTS: Final[Mapping[str, re.Pattern[str]]] = {
    "equation": re.compile(r"[a-zA-Z.,\- >]{0,200}"), "asked": re.compile(r".{0,2000}", re.DOTALL),
    "api_name": re.compile(r"[a-z_.]{1,60}"),
}  # fmt: skip

_SPECIALS: Final[Mapping[str, frozenset[str]]] = {
    "dtype": frozenset(ITEM_BYTES),
    "layout": frozenset({"strided"}),
    "device": frozenset({"cpu"}),
    "memory_format": frozenset({"contiguous_format", "preserve_format", "channels_last", "channels_last_3d"}),
}
_LARGEST: Final = 2**63


class OperatorParameter(NamedTuple):
    """A parameter of an operator."""

    name: str
    #: Kind as in the file: ``tensor``, ``int[]``, ``float?``.
    kind: str
    has_default: bool


class OperatorSignature(NamedTuple):
    """An operator's parameters: positional, then keyword."""

    positional: tuple[OperatorParameter, ...]
    named: tuple[OperatorParameter, ...]


def operator_lines() -> dict[str, str]:
    """Return the operators, each with its line after the name."""
    return dict(_lines())


def find_signature(op: str) -> OperatorSignature | None:
    """Return the signature of ``op``; None if it is not in the list."""
    line = _lines().get(op)
    return None if line is None else _signature(line)


def is_foreign(op: str) -> bool:
    """Return whether ``op`` belongs to a program's own library, neither torch's nor rdukit's."""
    name = parse_operator(op)
    return name.namespace not in TORCH_NAMESPACES and all(
        part.isidentifier() and not part.startswith("__") for part in name
    )  # fmt: skip


def foreign_operators(graph: KernelGraph) -> set[str]:
    """Return the operators of ``graph`` that programs register themselves."""
    return {node.op for node in graph.nodes if node.op != GETITEM and is_foreign(node.op)}


def check_operators(graph: KernelGraph) -> None:
    """Check that every operator of a kernel is in the list, or foreign, and that its arguments are valid.

    Raises:
        PefNotAllowed: an operator is not allowed. PefCorrupt: an argument is missing, superfluous, or of another kind.
    """
    for node in graph.nodes:
        if node.op == GETITEM:
            match node.args:
                case (Ref(), int()) if not node.kwargs:
                    continue
            raise PefCorrupt(f"{node.op} of node {node.name!r} takes a value and a position")
        signature = find_signature(node.op)
        if signature is None:
            if is_foreign(node.op):
                continue
            raise PefNotAllowed(
                f"the PEF names operator {node.op[:100]!r}, which the compiler never emits; a PEF may use only "
                "operators that it emits"
            )
        _check_arguments(node, signature)


def check_values(graph: KernelGraph, hyperparameters: Mapping[str, float]) -> None:
    """Check the dtypes and shapes of a kernel's inputs, and that its run-time scalars are the PEF's.

    Raises:
        PefCorrupt: a dtype, shape or scalar is invalid.
    """
    for spec in graph.inputs:
        is_legal = spec.dtype in ITEM_BYTES and len(spec.shape) == len(spec.stride)
        if not is_legal or min((*spec.shape, *spec.stride), default=0) < 0:
            raise PefCorrupt(
                f"kernel input {spec.name[:100]!r} has dtype {spec.dtype[:40]!r}, shape {list(spec.shape)[:20]} and "
                f"strides {list(spec.stride)[:20]}"
            )
    for node in graph.nodes:
        for name in _scalars([*node.args, *node.kwargs.values()]):
            if name not in hyperparameters:
                raise PefCorrupt(f"kernel node {node.name!r} reads {name[:100]!r}, for which the PEF has no value")


def _scalars(arguments: list[Argument]) -> list[str]:
    found: list[str] = []
    for argument in arguments:
        match argument:
            case Special("scalar", name):
                found.append(name)
            case list():
                found.extend(_scalars(argument))
    return found


def _check_arguments(node: KernelNode, signature: OperatorSignature) -> None:
    positional, named = signature
    if len(node.args) > len(positional):
        raise PefCorrupt(f"{node.op} of node {node.name!r} has {len(node.args)} arguments; expected {len(positional)}")
    for parameter, argument in zip(positional, node.args, strict=False):
        _check_argument(node, parameter, argument)
    left = {parameter.name: parameter for parameter in (*positional[len(node.args) :], *named)}
    for name, argument in node.kwargs.items():
        if name not in left:
            raise PefCorrupt(f"{node.op} of node {node.name!r} has parameter {name[:40]!r} twice, or does not know it")
        _check_argument(node, left.pop(name), argument)
    if missing := [parameter.name for parameter in left.values() if not parameter.has_default]:
        raise PefCorrupt(f"{node.op} of node {node.name!r} lacks {', '.join(missing)}")


def _check_argument(node: KernelNode, parameter: OperatorParameter, argument: Argument) -> None:
    if parameter.kind.startswith("text") and isinstance(argument, str):
        is_legal = _is_text(parameter.name, argument)
    else:
        is_legal = _checker(parameter.kind)(argument)
    if not is_legal:
        raise PefCorrupt(
            f"{node.op} of node {node.name!r}: {parameter.name} is {ascii(argument)[:80]}; expected {parameter.kind}"
        )


def _is_text(name: str, text: str) -> bool:
    pattern = TEXTS.get(name)
    return text in WORDS.get(name, ()) if pattern is None else pattern.fullmatch(text) is not None


@cache
def _checker(kind: str) -> Callable[[Argument], bool]:
    if kind.endswith("?"):
        present = _checker(kind[:-1])
        return lambda argument: argument is None or present(argument)
    if kind.endswith("[]"):
        item = _checker(kind[:-2])
        is_one_enough = kind in {"int[]", "float[]"}
        return lambda argument: (
            all(map(item, argument)) if isinstance(argument, list) else is_one_enough and item(argument)
        )
    return _PLAIN[kind]


def _is_number(argument: Argument) -> bool:
    match argument:
        case bool():
            return True
        case int():
            return -_LARGEST <= argument < _LARGEST
        case float():
            return math.isfinite(argument)
        case Special("float", text):
            return text in {"inf", "-inf", "nan"}
        case Special("complex", text):
            return _is_complex(text)
        case Special("scalar", _):
            return True
    return False


def _is_complex(text: str) -> bool:
    try:
        complex(text)
    except ValueError:
        return False
    return True


def _is_real(argument: Argument) -> bool:
    return _is_number(argument) and not (isinstance(argument, Special) and argument.kind == "complex")


def _special(kind: str) -> Callable[[Argument], bool]:
    return lambda argument: isinstance(argument, Special) and argument.kind == kind and argument.text in _SPECIALS[kind]


#: Kinds accepted for a tensor: torch converts numbers.
_PLAIN: Final[Mapping[str, Callable[[Argument], bool]]] = {
    "tensor": lambda argument: isinstance(argument, Ref) or _is_number(argument),
    "scalar": lambda argument: isinstance(argument, Ref) or _is_number(argument),
    "float": _is_real,
    "int": lambda argument: isinstance(argument, int) and -_LARGEST <= argument < _LARGEST,
    "bool": lambda argument: isinstance(argument, bool) or argument in (0, 1),
    "text": lambda argument: False,
    "generator": lambda argument: False,
    **{kind: _special(kind) for kind in _SPECIALS},
}


@cache
def _lines() -> dict[str, str]:
    text = files(__package__).joinpath("operators.txt").read_text()
    lines = (line.partition(" ") for line in text.splitlines() if line and not line.startswith("#"))
    return {op: rest for op, _, rest in lines}


@cache
def _signature(line: str) -> OperatorSignature:
    positional, _, named = line.partition("|")
    return OperatorSignature(tuple(map(_parameter, positional.split())), tuple(map(_parameter, named.split())))


def _parameter(word: str) -> OperatorParameter:
    name, _, kind = word.partition(":")
    return OperatorParameter(name, kind.removesuffix("="), kind.endswith("="))
