"""The lifetime of symbols in memory, and the memory plan of a PEF's runs. Pure.

Symbols of some kinds are persistent: they have their own memory from load to unload, and are updated in place. The
others are called passing. A passing symbol exists from the section that computes it until its last reader
(``freed_after``). Outputs, and gradients that a program can read, stay until the next run that computes them
(``replaced_by``) begins, so that two sets never exist at the same time.

``plan_memory`` and the engine both follow these rules. On the emulated chip, values inside a section are in PMU memory
and take no device memory. The host also holds them, as the section's ``scratch_bytes``. So the host's peak includes
scratch, and a lease requests the peak without it.

Source: ours. Exclusive device memory, requested before an application runs: runtime reference 3.1, 3.3.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from rdukit.errors import PefMismatch
from rdukit.pef.model import Graph, Pef, Section, SectionType, SymbolKind

#: Kinds whose memory outlives a run: allocated at load, updated in place.
PERSISTENT: Final = frozenset({
    SymbolKind.INPUT, SymbolKind.PARAMETER, SymbolKind.BUFFER, SymbolKind.STATE, SymbolKind.SEED, SymbolKind.PIECE
})  # fmt: skip
ALIGNMENT: Final = 64


def persistent_layout(pef: Pef) -> tuple[dict[str, int], int]:
    """Return the offset of each persistent region in one block of device memory, and the block's size in bytes."""
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


def parameter_layout(pef: Pef) -> tuple[dict[str, int], int]:
    """Return the offset of each symbol that runs only read, in one block, and the block's size in bytes.

    These are the parameters with their scales, and buffers that no section writes, all of which another checkpoint
    replaces.

    Raises:
        PefMismatch: a section changes a parameter, or a parameter shares memory with another symbol.
    """
    written = {name for section in pef.sections for name in section.outputs}
    written |= {name for section in pef.sections if section.type is SectionType.OPT for name in section.inputs}
    sharers = Counter(symbol.region for symbol in pef.symbols.values())
    offsets: dict[str, int] = {}
    end = 0
    for name, symbol in sorted(pef.symbols.items()):
        if symbol.kind is SymbolKind.PARAMETER and (name in written or sharers[symbol.region] > 1):
            how = "is changed by runs" if name in written else "shares its memory with another tensor"
            raise PefMismatch(
                f"parameter {name!r} of {pef.name} {how}: it cannot be replaced by another checkpoint; compile with "
                "purpose=serve"
            )
        is_buffer = symbol.kind is SymbolKind.BUFFER and name not in written and sharers[symbol.region] == 1
        if symbol.kind is SymbolKind.PARAMETER or is_buffer:
            offsets[name] = end
            end += -(-max(symbol.bytes, 1) // ALIGNMENT) * ALIGNMENT
    return offsets, max(end, ALIGNMENT)


def shared_outputs(pef: Pef) -> frozenset[str]:
    """Return outputs that share their region with an input or with another graph's output: they outlive the run."""
    count = Counter(symbol.region for symbol in pef.symbols.values())
    return frozenset(
        symbol.name
        for symbol in pef.symbols.values()
        if symbol.kind is SymbolKind.OUTPUT and (symbol.region != symbol.name or count[symbol.region] > 1)
    )


def made_inputs(pef: Pef) -> frozenset[str]:
    """Return inputs that another graph computes; the computed value is passing, next to the input's persistent
    memory.
    """
    names = (name for section in pef.sections for name in section.outputs)
    return frozenset(name for name in names if pef.symbols[name].kind is SymbolKind.INPUT)


def freed_after(pef: Pef, graph: Graph) -> dict[int, tuple[str, ...]]:
    """Map section ids to symbols with their last use there: activations, and gradients that programs cannot read."""
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
    """Return the gradient symbols that a program can read after a run: those of inputs, parameters and outputs."""
    return frozenset(
        part
        for graph in pef.graphs.values()
        for name, parts in graph.gradients.items()
        if pef.symbols[name].kind is not SymbolKind.ACTIVATION
        for part in parts
    )


def replaced_by(pef: Pef, graph: Graph, sections: Sequence[int]) -> tuple[str, ...]:
    """Return passing symbols that ``sections`` compute again, without reading their former values."""
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


#: Margin of a lease beyond the plan.
_LEASE_MARGIN_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class MemoryMoment:
    """A section's run, in bytes: passing symbols during and after it, and additional scratch."""

    section: int
    name: str
    type: SectionType
    during_bytes: int
    scratch_bytes: int
    after_bytes: int

    @property
    def peak_bytes(self) -> int:
        return self.during_bytes + self.scratch_bytes


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The memory of running sections, in bytes. ``start_bytes`` and ``end_bytes`` exclude persistent symbols."""

    graph: str
    persistent_bytes: int
    start_bytes: int
    end_bytes: int
    moments: tuple[MemoryMoment, ...]

    @property
    def peak_bytes(self) -> int:
        """Maximum bytes at one time on the host: persistent, passing, and scratch."""
        return self.persistent_bytes + max(self.start_bytes, self.end_bytes, *(m.peak_bytes for m in self.moments))

    @property
    def device_peak_bytes(self) -> int:
        """Maximum bytes of device memory at one time: ``peak_bytes`` without scratch."""
        return self.persistent_bytes + max(self.start_bytes, self.end_bytes, *(m.during_bytes for m in self.moments))

    @property
    def peak_moment(self) -> MemoryMoment | None:
        """The section with the host's peak, the first of several; None for a run without sections."""
        return max(self.moments, key=lambda m: m.peak_bytes, default=None)


def plan_memory(pef: Pef, graph: Graph, sections: Iterable[int] | None = None) -> MemoryPlan:
    """Plan the memory of running ``sections`` of ``graph`` in the given order; without them, the whole schedule.

    The plan assumes that complete runs of the other graphs, and this graph's earlier sections, have left their symbols.
    """
    chosen = tuple(graph.schedule) if sections is None else tuple(sections)
    walk = MemoryWalk(pef)
    for other in pef.graphs.values():
        if other.name != graph.name:
            walk.run(other, other.schedule)
    if chosen:
        walk.run(graph, graph.schedule[: graph.schedule.index(chosen[0])])
    return walk.run(graph, chosen)


def lease_bytes(pef: Pef) -> int:
    """Return the bytes of device memory that a lease for this PEF requests: the plan's peak over its graphs, and a
    margin.

    Source: ours.
    """
    peak = max((plan_memory(pef, graph).device_peak_bytes for graph in pef.graphs.values()), default=0)
    return max(peak, 1) + _LEASE_MARGIN_BYTES


class MemoryWalk:
    """Passing symbols that exist over a program's successive runs, and the memory that they keep.

    Symbols may share memory, as a view and its base do: the memory counts once, while any of them exists.
    """

    def __init__(self, pef: Pef) -> None:
        self._pef = pef
        self._persistent_bytes = persistent_layout(pef)[1]
        self._stored = shared_outputs(pef) | made_inputs(pef)
        self._freed = {name: freed_after(pef, graph) for name, graph in pef.graphs.items()}
        #: Existing symbol → owner of its memory; "" for persistent memory.
        self._owner: dict[str, str] = {}
        #: Owner → number of symbols in its memory, and the memory's bytes. Owners are numbered, because a name may be
        #: used again while other symbols are in its former memory.
        self._users: dict[str, int] = {}
        self._sizes: dict[str, int] = {}
        self._count = 0
        self.held_bytes = 0

    def run(self, graph: Graph, sections: Sequence[int]) -> MemoryPlan:
        """Run ``sections`` after the earlier runs."""
        self._drop(replaced_by(self._pef, graph, sections))
        start, freed = self.held_bytes, self._freed[graph.name]
        moments = tuple(self._run_section(self._pef.sections[number], freed[number]) for number in sections)
        self._copy_aside(name for number in sections for name in self._pef.sections[number].outputs)
        return MemoryPlan(graph.name, self._persistent_bytes, start, self.held_bytes, moments)

    def _copy_aside(self, made: Iterable[str]) -> None:
        """Copy values that are in persistent memory and will be written to a shared region."""
        for name in made:
            if name in self._stored and self._owner.get(name) == "":
                self._count += 1
                self._owner[name] = f"{self._count} {name}"
                self._add(self._owner[name], self._pef.symbols[name].bytes)

    def _drop(self, names: Iterable[str]) -> None:
        """Free symbols that exist."""
        for name in names:
            owner = self._owner.pop(name, None)
            if owner:
                self._users[owner] -= 1
                if not self._users[owner]:
                    self.held_bytes -= self._sizes.pop(owner)
                    del self._users[owner]

    def _run_section(self, section: Section, freed: Sequence[str]) -> MemoryMoment:
        """Add a section's outputs, then free the symbols with their last use there."""
        copied = 0
        made: dict[str, str] = {}
        for name in section.outputs:
            symbol = self._pef.symbols[name]
            source = section.shares.get(name)
            if source is not None:
                owner = made.get(source, self._owner.get(source, ""))
            else:
                self._count += 1
                owner = f"{self._count} {name}"
            if symbol.kind in PERSISTENT and symbol.kind is not SymbolKind.INPUT:
                copied += symbol.bytes if source is None else 0  # computed first, then copied to its memory
            else:
                made[name] = owner
                self._add(owner, section.holds.get(name, symbol.bytes))
        during = self.held_bytes + copied
        self._drop(made)  # former values are freed once the new ones exist
        self._owner.update(made)
        self._drop(freed)
        return MemoryMoment(section.id, section.name, section.type, during, section.scratch_bytes, self.held_bytes)

    def _add(self, owner: str, size: int) -> None:
        """Count one more symbol in the memory of ``owner``."""
        if not owner:
            return
        if owner not in self._users:
            self._users[owner] = 0
            self._sizes[owner] = size
            self.held_bytes += size
        self._users[owner] += 1
