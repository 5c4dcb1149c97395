"""The contents of a PEF as values. ``pef_to_dict`` and ``pef_from_dict`` are its JSON form.

A PEF is untrusted, so each value is checked against its dataclass's declared type.
"""

import math
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from functools import cache
from math import prod
from typing import Any, Final, Literal, Union, get_args, get_origin, get_type_hints

from rdukit.errors import PefCorrupt, PefVersionMismatch
from rdukit.hardware import CHIPS

#: Dtypes of tensors by their torch names; ``ITEM_BYTES`` has the same.
Dtype = Literal[
    "float64", "float32", "bfloat16", "float16", "int64", "int32", "int16", "int8", "uint8", "bool", "complex64",
    "complex128", "uint16", "uint32", "uint64",
]  # fmt: skip

ITEM_BYTES: Mapping[str, int] = {
    "float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, "int64": 8, "int32": 4, "int16": 2, "int8": 1,
    "uint8": 1, "bool": 1, "complex64": 8, "complex128": 16, "uint16": 2, "uint32": 4, "uint64": 8,
}  # fmt: skip

#: Elements of a row of a 4-bit weight that share a scale.
INT4_GROUP: Final = 32

#: Upper limit of device memory, more than any node has.
_MAX_BYTES = 2**60


#: Key of a training PEF's metadata with the reason for a missing evaluation graph.
NO_EVALUATION = "no_evaluation_graph"
#: Key of a PEF's metadata with values of tensors that checkpoints lack, such as nonzero tables computed by a module.
#: The value is a safetensors file by symbol name, in base64.
CONSTANTS = "constants"
#: Key of a PEF's metadata with the names of such tensors that are too large: only the compiling program has them.
UNSAVED_STATE = "unsaved_state"


class SymbolKind(StrEnum):
    """Purposes of symbols; comments say who writes them."""

    INPUT = "input"  # the program, before a run
    PARAMETER = "parameter"  # the program, once; the opt section updates it
    BUFFER = "buffer"  # the program, once; the fwd section may update it
    STATE = "state"  # zeros at first; the opt section updates it
    OUTPUT = "output"  # a section; the program reads it
    SEED = "seed"  # incoming gradient of an output: ones, zeros, or what the program set
    GRADIENT = "gradient"  # a bckwd section
    ACTIVATION = "activation"  # a section, for another section
    PIECE = "piece"  # not written itself: rows of a parameter or input that one of several chips holds


class SectionType(StrEnum):
    """Kinds of section, in schedule order."""

    FWD = "fwd"
    BCKWD = "bckwd"
    GRADNORM = "gradnorm"
    REDUCE = "reduce"
    OPT = "opt"


@dataclass(frozen=True, slots=True)
class Symbol:
    """A tensor in device memory. Symbols with one region name share memory."""

    name: str
    kind: SymbolKind
    dtype: str
    shape: tuple[int, ...]
    #: dtype that the program sees; the runtime converts on the way in and out.
    host_dtype: str
    region: str
    #: Symbol with the scales of an int8 weight's rows, or of the groups of ``INT4_GROUP`` elements of a 4-bit weight
    #: (uint8, see ``Pef.host_shape``). Empty for all others, and in PEFs before format 1.2.
    scale: str = ""
    #: Offset in bytes of a piece in its region. 0 for all others, and in PEFs before format 1.6.
    offset: int = 0

    @property
    def bytes(self) -> int:
        return prod(self.shape) * ITEM_BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class SectionResources:
    """Tiles, units and memory that a section occupies while it runs."""

    tiles: int
    pcus: int
    pmus: int
    sram_bytes: int


@dataclass(frozen=True, slots=True)
class Cost:
    """Projection of the cost model for the target chip: emulated, never measured."""

    cycles: int
    flops: int
    bytes_in: int
    bytes_out: int
    bytes_weights: int
    seconds: float
    #: Terms of ``seconds``: the longest of the first four, and the launch. Zeros in PEFs before format 1.1.
    compute_s: float = 0.0
    memory_s: float = 0.0
    peer_s: float = 0.0
    host_s: float = 0.0
    launch_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Section:
    """A subgraph that is resident on the chip at one time and exchanges values through device memory."""

    id: int
    name: str
    type: SectionType
    graph: str
    #: Digest of the kernel in ``ir/``; equal sections share one.
    kernel: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    #: Names of its traced operators.
    operators: tuple[str, ...]
    rule: str | None
    heuristic: str
    #: Why the compiler cut here: one sentence for people.
    why: str
    resources: SectionResources
    cost: Cost
    #: Decisions of the heuristic: tiling, sharding, factors. Empty in PEFs before format 1.1.
    decisions: Mapping[str, Any] = field(default_factory=dict)
    #: Maximum bytes inside one run on the host, in addition to inputs and outputs; 0 in PEFs before format 1.2.
    scratch_bytes: int = 0
    #: Output → the input or earlier output whose memory it shares, such as the base of a view. Empty in PEFs before
    #: format 1.2.
    shares: Mapping[str, str] = field(default_factory=dict)
    #: Output that is a view of a larger tensor → bytes that it keeps. Empty in PEFs before format 1.2.
    holds: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Graph:
    """A runnable graph: its inputs, outputs and sections in schedule order."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    schedule: tuple[int, ...]
    #: Output name -> incoming gradient's symbol, for outputs that can start backward.
    seeds: Mapping[str, str]
    #: Outputs whose seed is ones unless the program sets it.
    losses: tuple[str, ...]
    #: Differentiable symbol -> gradient symbols to add up.
    gradients: Mapping[str, tuple[str, ...]]
    #: For an evaluation graph: its training graph, whose outputs it computes in evaluation mode from the same inputs,
    #: parameters and buffers. Empty for all others, and in PEFs before format 1.4.
    evaluates: str = ""


@dataclass(frozen=True, slots=True)
class ChipPlan:
    """Placement of a PEF over several chips: ``rdukit.pef.chips`` derives memory and traffic from it."""

    count: int
    #: How the model is divided: batch, weight or pipeline.
    how: str
    #: Section id → the chips that run it, each a part; empty for a section on the host.
    sections: tuple[tuple[int, ...], ...]
    #: Gradient or optimizer state → the parameter or input on whose chips it is.
    follows: Mapping[str, str]
    #: Parameters and inputs whose rows are divided equally among the chips.
    divided: tuple[str, ...]
    #: Operator that every chip computes whole → reason.
    replicated: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Pef:
    """A PEF without its kernels' bytes."""

    name: str
    mode: str
    arch: str
    num_tiles: int
    precision: str
    inference: bool
    compiler_version: str
    torch_version: str
    #: Instruction sets that the native kernels need; empty without native kernels.
    cpu_capability: str
    graphs: Mapping[str, Graph]
    symbols: Mapping[str, Symbol]
    sections: tuple[Section, ...]
    #: Run-time scalars and their compiled-in values, such as ``lr``.
    hyperparameters: Mapping[str, float]
    #: Description that a later trace must equal, compared field by field to name the difference.
    signature: Mapping[str, Any]
    metadata: Mapping[str, Any] = field(default_factory=dict)
    #: None on one chip, and in PEFs before format 1.6. ``num_tiles`` counts the tiles of all chips.
    chips: ChipPlan | None = None

    def evaluation_of(self, name: str) -> Graph | None:
        """Return the evaluation graph of the graph ``name``; None if there is none."""
        return next((graph for graph in self.graphs.values() if graph.evaluates == name), None)

    def main_graphs(self) -> tuple[Graph, ...]:
        """Return all graphs that are not the evaluation graph of another."""
        return tuple(graph for graph in self.graphs.values() if not graph.evaluates)

    def host_shape(self, name: str) -> tuple[int, ...]:
        """Return the program's shape of a symbol: a 4-bit weight has fewer bytes than elements."""
        symbol = self.symbols[name]
        if not symbol.scale or symbol.dtype != "uint8":
            return symbol.shape
        rows, groups = self.symbols[symbol.scale].shape
        return rows, groups * INT4_GROUP

    @property
    def region_bytes(self) -> int:
        """Bytes of device memory: each region once, at its largest symbol."""
        regions: dict[str, int] = {}
        for symbol in self.symbols.values():
            regions[symbol.region] = max(regions.get(symbol.region, 0), symbol.bytes)
        return sum(regions.values())


def pef_to_dict(pef: Pef) -> dict[str, Any]:
    """Return plain containers, ready for JSON; unlike with ``asdict``, content is shared with ``pef``, not copied."""
    return {
        **_fields_of(pef),
        "graphs": {name: _fields_of(graph) for name, graph in pef.graphs.items()},
        "symbols": {name: _fields_of(symbol) for name, symbol in pef.symbols.items()},
        "sections": [
            {**_fields_of(section), "resources": _fields_of(section.resources), "cost": _fields_of(section.cost)}
            for section in pef.sections
        ],
        "chips": None if pef.chips is None else _fields_of(pef.chips),
    }


def _fields_of(value: Any) -> dict[str, Any]:
    return {each.name: getattr(value, each.name) for each in fields(value)}


def pef_from_dict(value: Mapping[str, Any]) -> Pef:
    """Rebuild a ``Pef`` and check that its names agree.

    Raises:
        PefCorrupt: a field is missing or of the wrong type, or a name is not defined.
    """
    try:
        symbols = {
            name: Symbol(
                name=s["name"], kind=SymbolKind(s["kind"]), dtype=str(s["dtype"]), shape=tuple(map(int, s["shape"])),
                host_dtype=str(s["host_dtype"]), region=str(s["region"]), scale=str(s.get("scale", "")),
                offset=int(s.get("offset", 0)),
            )
            for name, s in value["symbols"].items()
        }  # fmt: skip
        sections = tuple(
            Section(
                **{
                    **s,
                    "type": SectionType(s["type"]),
                    "inputs": tuple(s["inputs"]),
                    "outputs": tuple(s["outputs"]),
                    "operators": tuple(s["operators"]),
                    "resources": SectionResources(**s["resources"]),
                    "cost": Cost(**s["cost"]),
                }
            )
            for s in value["sections"]
        )
        graphs = {
            name: Graph(
                name=g["name"], inputs=tuple(g["inputs"]), outputs=tuple(g["outputs"]),
                schedule=tuple(map(int, g["schedule"])), seeds=dict(g["seeds"]), losses=tuple(g["losses"]),
                gradients={k: tuple(v) for k, v in g["gradients"].items()}, evaluates=g.get("evaluates", ""),
            )
            for name, g in value["graphs"].items()
        }  # fmt: skip
        pef = Pef(
            **{**value, "symbols": symbols, "sections": sections, "graphs": graphs, "chips": _chips(value.get("chips"))}
        )
    except (KeyError, TypeError, ValueError, AttributeError) as cause:
        raise PefCorrupt(f"the PEF's table of contents is not readable: {cause!r}") from cause
    for symbol in symbols.values():
        check_types(symbol, "a symbol")
    for section in sections:
        check_types(section, "a section")
        check_types(section.resources, "a section's resources")
        check_types(section.cost, "a section's cost")
    for graph in graphs.values():
        check_types(graph, "a graph")
    if pef.chips is not None:
        check_types(pef.chips, "the PEF's chips")
    check_types(pef, "the PEF")
    _check_values(pef)
    _check_names(pef)
    return pef


def _chips(value: Mapping[str, Any] | None) -> ChipPlan | None:
    if value is None:
        return None
    sections = tuple(tuple(chips) for chips in value["sections"])
    return ChipPlan(**{**value, "sections": sections, "divided": tuple(value["divided"])})


def _check_values(pef: Pef) -> None:
    if pef.arch not in CHIPS:
        raise PefCorrupt(f"the PEF is for {pef.arch!r}; expected {', '.join(CHIPS)}")
    if pef.num_tiles < 1:
        raise PefCorrupt(f"the PEF needs {pef.num_tiles} tiles; expected 1 or more")
    unknown = {dtype for s in pef.symbols.values() for dtype in (s.dtype, s.host_dtype)} - set(ITEM_BYTES)
    if unknown:
        raise PefCorrupt(f"symbols have dtypes {sorted(unknown)}; expected {sorted(ITEM_BYTES)}")
    for name, symbol in pef.symbols.items():
        if name != symbol.name or min(symbol.shape, default=0) < 0:
            raise PefCorrupt(f"symbol {name!r} is called {symbol.name!r} and has shape {list(symbol.shape)}")
    for section in pef.sections:
        for counted in (section.cost, section.resources):
            if min(getattr(counted, each.name) for each in fields(counted)) < 0:
                raise PefCorrupt(f"section {section.id} has a negative cost or resource")
    if pef.region_bytes >= _MAX_BYTES:
        raise PefCorrupt(f"the PEF needs {pef.region_bytes} bytes of device memory; expected fewer than {_MAX_BYTES}")


def int4_shape(rows: int, width: int) -> tuple[int, int, int]:
    """Return the shape of the bytes of a 4-bit weight [rows, width]: half a byte for each element of each group."""
    return rows, width // INT4_GROUP, INT4_GROUP // 2


def _fits_scale(symbol: Symbol, scale: Symbol | None) -> bool:
    if scale is None or symbol.kind is not SymbolKind.PARAMETER:
        return False
    if symbol.dtype == "int8":
        return len(symbol.shape) == 2 and scale.shape == symbol.shape[:1] and scale.dtype == "float32"
    is_grouped = symbol.dtype == "uint8" and scale.dtype == "bfloat16" and len(scale.shape) == 2
    return is_grouped and symbol.shape == int4_shape(scale.shape[0], scale.shape[1] * INT4_GROUP)


def _check_names(pef: Pef) -> None:
    for symbol in pef.symbols.values():
        if symbol.scale and symbol.dtype == "uint8" and len(symbol.shape) == 2:
            raise PefVersionMismatch(
                f"{pef.name} has 4-bit weights in the layout of an earlier version, such as {symbol.name!r}; compile "
                "it again"
            )
        if symbol.scale and not _fits_scale(symbol, pef.symbols.get(symbol.scale)):
            raise PefCorrupt(f"symbol {symbol.name!r} has scales in {symbol.scale!r} of the wrong shape or dtype")
    for section in pef.sections:
        for name in (*section.inputs, *section.outputs):
            if name not in pef.symbols:
                raise PefCorrupt(f"section {section.id} names symbol {name!r}, which the PEF does not define")
        bound = {*section.inputs, *section.outputs}
        if not bound.issuperset((*section.shares, *section.shares.values(), *section.holds)):
            raise PefCorrupt(f"section {section.id} assigns memory to a symbol that it neither reads nor makes")
        if min(section.scratch_bytes, *section.holds.values(), 0) < 0:
            raise PefCorrupt(f"section {section.id} uses a negative number of bytes")
    _check_chips(pef)
    ids = [section.id for section in pef.sections]
    if ids != list(range(len(ids))):
        raise PefCorrupt(f"section ids are {ids}; they must count from 0")
    for key, graph in pef.graphs.items():
        if key != graph.name:
            raise PefCorrupt(f"graph {key!r} is called {graph.name!r}")
        made = (name for names in graph.gradients.values() for name in names)
        for name in (*graph.inputs, *graph.outputs, *graph.seeds, *graph.seeds.values(), *graph.gradients, *made):
            if name not in pef.symbols:
                raise PefCorrupt(f"graph {graph.name!r} names symbol {name!r}, which the PEF does not define")
        for loss in graph.losses:
            if loss not in graph.seeds:
                raise PefCorrupt(f"graph {graph.name!r} has loss {loss!r} without a seed")
        for name in graph.seeds.values():
            if pef.symbols[name].kind is not SymbolKind.SEED:
                raise PefCorrupt(f"graph {graph.name!r} has seed {name!r}, whose kind is {pef.symbols[name].kind}")
        if graph.evaluates:
            _check_evaluation(pef, graph)
        if any(not 0 <= i < len(ids) for i in graph.schedule):
            raise PefCorrupt(f"graph {graph.name!r} schedules a section that the PEF does not have")


def _check_chips(pef: Pef) -> None:
    for symbol in pef.symbols.values():
        held = pef.symbols.get(symbol.region)
        is_inside = held is not None and 0 <= symbol.offset <= held.bytes - symbol.bytes
        if (symbol.kind is SymbolKind.PIECE and not is_inside) or (
            symbol.kind is not SymbolKind.PIECE and symbol.offset
        ):
            raise PefCorrupt(f"symbol {symbol.name!r} is not within the memory of {symbol.region!r}")
    plan = pef.chips
    if plan is None:
        return
    if plan.count < 2 or len(plan.sections) != len(pef.sections) or pef.num_tiles % plan.count:
        raise PefCorrupt(
            f"the PEF is for {plan.count} chips and {pef.num_tiles} tiles, and places {len(plan.sections)} of "
            f"{len(pef.sections)} sections; expected 2 or more chips with equal numbers of tiles, and all sections "
            "placed"
        )
    if any(not 0 <= chip < plan.count for chips in plan.sections for chip in chips):
        raise PefCorrupt(f"a section is on a chip outside the {plan.count} planned ones")
    if unknown := {*plan.follows, *plan.follows.values(), *plan.divided} - set(pef.symbols):
        raise PefCorrupt(f"the PEF places symbol {min(unknown)!r}, which it does not define")


def _check_evaluation(pef: Pef, graph: Graph) -> None:
    trained = pef.graphs.get(graph.evaluates)
    if trained is None or trained.evaluates or len(trained.outputs) != len(graph.outputs):
        raise PefCorrupt(
            f"graph {graph.name!r} evaluates {graph.evaluates!r}; expected a training graph with as many outputs"
        )


#: Maximum length of a text, and largest integer (bytes, cycles).
_MAX_TEXT = 100_000
_MAX_NUMBER = 2**63


def check_types(value: Any, where: str) -> None:
    """Check the type of every field of a dataclass, without checking the fields of nested dataclasses.

    Args:
        where: description of the value for the message.
    Raises:
        PefCorrupt: a field has another type than declared; the message names the field, the value and the type.
    """
    kind: type = type(value)
    for name, is_legal, declared in _declared_fields(kind):
        found = getattr(value, name)
        if not is_legal(found):
            shown = ascii(found) if isinstance(found, str | int | float | None) else f"a {type(found).__name__}"
            raise PefCorrupt(f"{where}: {name} is {shown[:80]}; expected {_shown(declared)}; compile again")


@cache
def _declared_fields(kind: type) -> tuple[tuple[str, Callable[[Any], bool], Any], ...]:
    hints = get_type_hints(kind)
    return tuple((field.name, _checker(hints[field.name]), hints[field.name]) for field in fields(kind))


def _checker(declared: Any) -> Callable[[Any], bool]:
    origin, arguments = get_origin(declared), get_args(declared)
    if declared is Any:
        return lambda value: True
    if origin in (Union, types.UnionType):
        options = [_checker(option) for option in arguments]
        return lambda value: any(option(value) for option in options)
    if origin is tuple:
        item = _checker(arguments[0])
        return lambda value: isinstance(value, tuple) and all(map(item, value))
    if origin is not None and issubclass(origin, Mapping):
        key, item = _checker(arguments[0]), _checker(arguments[1])
        return lambda value: isinstance(value, Mapping) and all(map(key, value)) and all(map(item, value.values()))
    if declared is int:
        return lambda value: type(value) is int and abs(value) < _MAX_NUMBER
    if declared is float:
        return lambda value: type(value) in (int, float) and math.isfinite(value) and abs(value) < _MAX_NUMBER
    if declared is str:
        return lambda value: isinstance(value, str) and len(value) < _MAX_TEXT
    return lambda value: isinstance(value, declared)


def _shown(declared: Any) -> str:
    return declared.__name__ if isinstance(declared, type) and get_origin(declared) is None else str(declared)


def flatten_paths(paths: Iterable[str]) -> dict[str, str]:
    """Map the path of each tensor to its symbol without the model's name: ``h.0.weight`` → ``h__0__weight``.

    If several paths would get one name, such as parameter ``a__weight`` and module ``a``'s ``weight``, the one with the
    most modules keeps it, and the others get ``…_1``, ``…_2``, independently of the order of ``paths``.

    Source: SDK reference 20. The numbers of conflicting names are ours; the vendor's programs have no conflicts.
    """
    given = list(dict.fromkeys(paths))
    flat = {path: path.replace(".", "__") for path in given}
    taken = set(flat.values())
    if len(taken) == len(flat):
        return flat
    named: set[str] = set()
    for path in sorted(given, key=lambda path: (-path.count("."), path)):
        wanted, name, number = flat[path], flat[path], 0
        while name in named or (number and name in taken):
            number += 1
            name = f"{wanted}_{number}"
        named.add(name)
        flat[path] = name
    return flat
