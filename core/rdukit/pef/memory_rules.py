"""Which symbols have memory when: persistent ones always, the others from the section that makes them. Pure.

Symbols of some kinds are persistent: they have a place of their own from load to unload, and updates go there in place.
The others, called passing, exist from the section that makes them until nothing in the graph reads them any more
(``freed_after``); outputs, and gradients that a program can ask for, stay until a run makes them again
(``replaced_by``), and go when that run begins, so that two sets never exist at once.

The plan (``memory_plan``) and the engine both follow these rules. Source: ours.
"""

from collections.abc import Sequence
from typing import Final

from rdukit.pef.model import Graph, Pef, SymbolKind

#: Kinds whose memory outlives a run: allocated at load, updated in place.
PERSISTENT: Final = frozenset(
    {SymbolKind.INPUT, SymbolKind.PARAMETER, SymbolKind.BUFFER, SymbolKind.STATE, SymbolKind.SEED}
)
ALIGNMENT: Final = 64


def persistent_layout(pef: Pef) -> tuple[dict[str, int], int]:
    """Offset of each persistent region in one block of device memory, and the block's size in bytes."""
    sizes: dict[str, int] = {}
    shared = shared_outputs(pef)
    for symbol in pef.symbols.values():
        if symbol.kind in PERSISTENT or symbol.name in shared:
            sizes[symbol.region] = max(sizes.get(symbol.region, 0), symbol.bytes)
    offsets: dict[str, int] = {}
    end = 0
    for region, size in sizes.items():
        offsets[region] = end
        end += -(-max(size, 1) // ALIGNMENT) * ALIGNMENT
    return offsets, end


def shared_outputs(pef: Pef) -> frozenset[str]:
    """Outputs that share their region, with an input or with another graph's output: they outlive the run."""
    count: dict[str, int] = {}
    for symbol in pef.symbols.values():
        count[symbol.region] = count.get(symbol.region, 0) + 1
    return frozenset(
        symbol.name
        for symbol in pef.symbols.values()
        if symbol.kind is SymbolKind.OUTPUT and (symbol.region != symbol.name or count[symbol.region] > 1)
    )


def made_inputs(pef: Pef) -> frozenset[str]:
    """Inputs of a graph that another graph makes: what is made passes, beside the input's own persistent place."""
    names = (name for section in pef.sections for name in section.outputs)
    return frozenset(name for name in names if pef.symbols[name].kind is SymbolKind.INPUT)


def freed_after(pef: Pef, graph: Graph) -> dict[int, tuple[str, ...]]:
    """Section id → symbols that nothing needs after it: activations, and gradients that no program can ask for."""
    last: dict[str, int] = {}
    for number in graph.schedule:
        for name in (*pef.sections[number].inputs, *pef.sections[number].outputs):
            last[name] = number
    visible = visible_gradients(pef)
    freed: dict[int, list[str]] = {number: [] for number in graph.schedule}
    for name, number in last.items():
        kind = pef.symbols[name].kind
        if kind is SymbolKind.ACTIVATION or (kind is SymbolKind.GRADIENT and name not in visible):
            freed[number].append(name)
    return {number: tuple(names) for number, names in freed.items()}


def visible_gradients(pef: Pef) -> frozenset[str]:
    """Gradient symbols that a program can read after a run: those of inputs, parameters and outputs."""
    return frozenset(
        part
        for graph in pef.graphs.values()
        for name, parts in graph.gradients.items()
        if pef.symbols[name].kind is not SymbolKind.ACTIVATION
        for part in parts
    )


def replaced_by(pef: Pef, graph: Graph, sections: Sequence[int]) -> tuple[str, ...]:
    """Passing symbols that running ``sections`` makes anew, without reading what an earlier run left in them."""
    made_here = {
        name
        for number in graph.schedule
        for name in pef.sections[number].outputs
        if pef.symbols[name].kind is SymbolKind.INPUT
    }
    seen: set[str] = set()
    found: list[str] = []
    for number in sections:
        section = pef.sections[number]
        seen.update(section.inputs)
        for name in section.outputs:
            if name not in seen and (pef.symbols[name].kind not in PERSISTENT or name in made_here):
                found.append(name)
            seen.add(name)
    return tuple(found)
