"""Collects the parts of a PEF, with values that are derived from the graph."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Final

from rdukit.collectives.topology import load_defaults
from rdukit.hardware import ChipSpec
from rdukit.pef.kernel import KernelGraph
from rdukit.pef.model import Section, Symbol, SymbolKind
from rdukit_compiler.cost import StageCost, operator_work, project_stages
from rdukit_compiler.ir import ModelGraph, ValueKind
from rdukit_compiler.operators.vocabulary import LOSSES
from rdukit_compiler.passes.cut_sections import SectionPlan
from rdukit_compiler.passes.differentiate import OperatorShape
from rdukit_compiler.passes.host_operators import HOST
from rdukit_compiler.passes.section_cache import SectionCache

#: Kind of a graph's value → kind of its symbol.
KINDS: Final = {
    ValueKind.INPUT: SymbolKind.INPUT, ValueKind.PARAMETER: SymbolKind.PARAMETER, ValueKind.BUFFER: SymbolKind.BUFFER,
}  # fmt: skip
#: Rank of kinds: a tensor that several graphs of a PEF share gets the kind of highest rank.
MADE_OR_TAKEN: Final = {SymbolKind.ACTIVATION: 1, SymbolKind.OUTPUT: 2, SymbolKind.INPUT: 3}


@dataclass(slots=True)
class ChipPlaces:
    """The chips of the sections and symbols added so far: see ``ChipPlan``."""

    sections: list[tuple[int, ...]] = field(default_factory=list)
    follows: dict[str, str] = field(default_factory=dict)
    divided: dict[str, None] = field(default_factory=dict)

    def sizes(self, symbols: Sequence[Symbol], chips: int, how: str) -> dict[str, int]:
        """Return the bytes of updated symbols, by name, on one chip; for a pipeline, the average."""
        return {
            symbol.name: symbol.bytes // chips
            if how == "pipeline" or self.follows.get(symbol.name, symbol.name) in self.divided
            else symbol.bytes
            for symbol in symbols
        }


@dataclass(slots=True)
class Assembly:
    """Collected parts of a PEF. ``kernels`` are by digest."""

    symbols: dict[str, Symbol] = field(default_factory=dict)
    sections: list[Section] = field(default_factory=list)
    kernels: dict[str, KernelGraph] = field(default_factory=dict)
    hyperparameters: dict[str, float] = field(default_factory=dict)
    #: Section → operators of its pipeline's stages, with their projections; sections of the host have none.
    stages: dict[int, list[tuple[str, StageCost]]] = field(default_factory=dict)
    #: Kernels of the sections built so far, of all graphs.
    cache: SectionCache = field(default_factory=SectionCache)
    #: Locations in a PEF over several chips, as in its ``ChipPlan``.
    places: ChipPlaces = field(default_factory=ChipPlaces)

    def note_stages(
        self, work: Sequence[OperatorShape], plan: SectionPlan | None, chip: ChipSpec, tiles: int
    ) -> None:  # fmt: skip
        """Keep the projected stages of the section that is added next, for the reports."""
        if plan is not None and plan.heuristic == HOST:
            return
        counted = [operator_work(shape.op, shape.inputs, shape.outputs) for shape in work]
        stages = project_stages(counted, chip, tiles, plan.decisions if plan is not None else None)
        self.stages[len(self.sections)] = [(work[stage.operator].op, stage) for stage in stages]


def loss_outputs(graph: ModelGraph) -> tuple[str, ...]:
    """Return outputs whose incoming gradient is ones by default (SDK reference 17): losses and scalars, or all outputs
    if there are none.
    """
    producers = graph.producers()
    candidates = [name for name in graph.outputs if graph.values[name].requires_grad]
    chosen = [
        name
        for name in candidates
        if graph.values[name].shape == () or (name in producers and producers[name].op_type in LOSSES)
    ]
    return tuple(dict.fromkeys(chosen or candidates))


@cache
def link_bandwidth() -> float:
    """Return the bytes a second of a link between two RDUs, one way: an assumption of ``links.yaml``."""
    return float(load_defaults()["rdu"]["gb_s"]) * 1e9


def host_dtype(dtype: str) -> str:
    """Return the dtype in which a program reads a symbol that its own graph does not have, such as a gradient."""
    return "float32" if dtype == "bfloat16" else dtype
