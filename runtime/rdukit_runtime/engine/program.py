"""A loaded PEF that can run: symbols as slots, sections as steps over them."""

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import torch

from rdukit.errors import InvalidArgument, ShapeMismatch, UnknownTensor
from rdukit.pef.model import Graph, Pef, Section, SectionType, Symbol, SymbolKind
from rdukit_runtime.engine.portable import Kernel
from rdukit_runtime.status_page import ARGUMENT_LOAD, CHECKPOINT, EXECUTE, HOST, StatusPage, private_page

#: Kinds whose memory outlives a run: allocated at load, updated in place.
PERSISTENT: Final = frozenset(
    {SymbolKind.INPUT, SymbolKind.PARAMETER, SymbolKind.BUFFER, SymbolKind.STATE, SymbolKind.SEED}
)
ALIGNMENT: Final = 64


@dataclass(slots=True)
class Counters:
    """What has run. Emulated figures come from the cost model's projections, host figures from this machine's clock."""

    runs: int = 0
    sections: int = 0
    emulated_cycles: int = 0
    emulated_seconds: float = 0.0
    flops: int = 0
    bytes: int = 0
    host_seconds: float = 0.0
    section_runs: dict[int, int] = field(default_factory=dict)


class PlanCost(NamedTuple):
    """What one run of a plan costs by the cost model, added up over its sections."""

    cycles: int
    seconds: float
    flops: int
    ddr_read: int
    ddr_written: int


class Store(NamedTuple):
    """An output that lives on in a region which it shares: copied there from its slot when the run has ended."""

    name: str
    slot: int
    home: torch.Tensor


class Plan(NamedTuple):
    """Steps in order, and the tensors that must be there before: (section type, name, slot)."""

    steps: tuple["Step", ...]
    needs: tuple[tuple[str, str, int], ...]
    cost: PlanCost
    #: Empty in programs without shared regions.
    stores: tuple[Store, ...] = ()


class Step(NamedTuple):
    """One section bound to slots.

    ``written`` are (position among the outputs, slot) of those that go into memory of their own, such as a buffer;
    ``freed`` are slots that nothing reads after it.
    """

    section: Section
    kernel: Kernel
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    written: tuple[tuple[int, int], ...]
    freed: tuple[int, ...]


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


class Program:
    """Slots and steps of one PEF.

    Args:
        memory: writable, zeroed, at least as large as ``persistent_layout`` says.
        kernels: by digest.
        page: where runs, phases and transfers are counted, for whoever looks at the node.
    """

    def __init__(
        self, pef: Pef, kernels: Mapping[str, Kernel], memory: memoryview, page: StatusPage | None = None
    ) -> None:
        self.pef = pef
        self.page = private_page() if page is None else page
        self._transfer_phase = ARGUMENT_LOAD
        #: Runs and host seconds of each plan; ``counters`` adds them up.
        self._ran: dict[tuple[str, tuple[int, ...]], list[float]] = {}
        self._kernels = kernels
        self._slot_of = {name: position for position, name in enumerate(pef.symbols)}
        #: One tensor per symbol; None where nothing was computed yet or it was freed.
        self._slots: list[torch.Tensor | None] = [None] * len(self._slot_of)
        #: Incoming gradients that the program set; they stay until set again.
        self._seeded: set[str] = set()
        self._plans: dict[tuple[str, tuple[int, ...]], Plan] = {}
        #: While a program measures: host seconds of each section that ran, in order; None otherwise.
        self.section_seconds: list[tuple[int, float]] | None = None
        #: Outputs that outlive the run, by name: their place in persistent memory.
        self._homes: dict[str, torch.Tensor] = {}
        #: Region → the output that was stored there last.
        self._stored: dict[str, str] = {}
        #: Inputs of a graph that another graph makes → the slot in which that one keeps what it made.
        self._made_slots: dict[str, int] = {}
        self._place_persistent(memory)
        #: Symbols that hold a run-time scalar, such as a dropout rate, and the scalars that they hold now.
        self._rates = tuple(name for name in pef.hyperparameters if name in self._slot_of)
        self._held: Mapping[str, float] | None = None
        for graph in pef.graphs.values():
            for loss in graph.losses:
                self._tensor(graph.seeds[loss]).fill_(1)

    # -- memory ------------------------------------------------------------------------------------------------------

    def _place_persistent(self, memory: memoryview) -> None:
        offsets, size = persistent_layout(self.pef)
        self._begin = torch.frombuffer(memory, dtype=torch.uint8).data_ptr() if len(memory) else 0
        self._end = self._begin + len(memory)
        if len(memory) < size:
            raise InvalidArgument(f"device memory of {len(memory)} bytes is too small; the PEF needs {size}")
        shared = shared_outputs(self.pef)
        for name, symbol in self.pef.symbols.items():
            if symbol.kind in PERSISTENT or name in shared:
                dtype: torch.dtype = getattr(torch, symbol.dtype)
                count = symbol.bytes // dtype.itemsize
                flat = (
                    torch.frombuffer(memory, dtype=dtype, count=count, offset=offsets[symbol.region])
                    if count
                    else torch.empty(0, dtype=dtype)
                )
                if name in shared:
                    self._homes[name] = flat.view(symbol.shape)
                else:
                    self._slots[self._slot_of[name]] = flat.view(symbol.shape)
        for section in self.pef.sections:
            for name in section.outputs:
                if self.pef.symbols[name].kind is SymbolKind.INPUT and name not in self._made_slots:
                    self._made_slots[name] = len(self._slots)
                    self._slots.append(None)

    def symbol(self, name: str) -> Symbol:
        """The symbol called ``name``.

        Raises:
            UnknownTensor: the PEF has none; the message lists its inputs.
        """
        symbol = self.pef.symbols.get(name)
        if symbol is None:
            inputs = sorted(s.name for s in self.pef.symbols.values() if s.kind is SymbolKind.INPUT)
            raise UnknownTensor(f"the PEF has no tensor {name!r}; its inputs are {', '.join(inputs)}")
        return symbol

    def find_tensor(self, name: str) -> str:
        """The symbol that ``name`` stands for: its own, or of a region the one that was stored there last.

        Raises:
            UnknownTensor: there is neither.
        """
        if name in self._slot_of:
            return name
        held = [s.name for s in self.pef.symbols.values() if s.region == name]
        return self._stored.get(name) or (held[0] if held else self.symbol(name).name)

    def write(self, name: str, value: torch.Tensor) -> None:
        """Copy ``value`` into device memory, converting its dtype.

        Raises:
            UnknownTensor: no such tensor; or it cannot be written. ShapeMismatch: shapes differ, or one is of numbers
            and the other of integers.
        """
        self._transfer([(self._writable(name, value), value)])

    def write_all(self, values: Sequence[tuple[str, torch.Tensor]]) -> None:
        """``write`` for several tensors: all are checked before the first is copied."""
        self._transfer([(self._writable(name, value), value) for name, value in values])

    def _transfer(self, copies: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Host to device."""
        page = self.page
        former = page.enter(self._transfer_phase)
        try:
            count = 0
            for tensor, value in copies:
                tensor.copy_(value)
                count += tensor.nbytes
            page.count_transfer(count, 0)
        finally:
            page.enter(former)

    def _writable(self, name: str, value: torch.Tensor) -> torch.Tensor:
        tensor = self._slots[self._slot_of[name]] if name in self._slot_of else None
        if tensor is None or self.pef.symbols[name].kind not in PERSISTENT:
            symbol = self.symbol(name)
            raise UnknownTensor(f"tensor {name!r} is made by the graph ({symbol.kind}) and cannot be written")
        if tensor.shape != value.shape:
            raise ShapeMismatch(
                f"tensor {name!r} has shape {list(value.shape)}, the PEF was compiled for {list(tensor.shape)}; "
                "batch size and sizes are fixed at compile time"
            )
        if value.dtype != tensor.dtype and value.is_floating_point() != tensor.is_floating_point():
            raise ShapeMismatch(
                f"tensor {name!r} is {value.dtype}, the PEF was compiled for {self.pef.symbols[name].host_dtype}; "
                "convert it first: integers and floating-point numbers are not converted into each other"
            )
        return tensor

    def read(self, name: str) -> torch.Tensor:
        """A copy of a tensor in the program's dtype.

        Raises:
            UnknownTensor: no such tensor, or nothing has computed it yet.
        """
        symbol = self.symbol(name)
        tensor = self._homes[name] if name in self._homes else self._tensor(name)
        return self.to_host(tensor, symbol)

    def to_host(self, tensor: torch.Tensor, symbol: Symbol) -> torch.Tensor:
        """A copy of a device tensor in the program's dtype; counted as having crossed PCIe."""
        former = self.page.enter(self._transfer_phase)
        try:
            self.page.count_transfer(0, tensor.nbytes)
            return tensor.to(getattr(torch, symbol.host_dtype), copy=True)
        finally:
            self.page.enter(former)

    @contextlib.contextmanager
    def checkpointing(self) -> Iterator[None]:
        """Within the block transfers are counted as ``chkpt``, not as ``aload``."""
        former, self._transfer_phase = self._transfer_phase, CHECKPOINT
        try:
            yield
        finally:
            self._transfer_phase = former

    def has_value(self, name: str) -> bool:
        """Whether there is such a tensor, and it can be read."""
        return name in self._homes or (name in self._slot_of and self._slots[self._slot_of[name]] is not None)

    def device_tensor(self, name: str) -> torch.Tensor:
        """The device's own tensor, not copied; what a run's handle keeps. Of an input that a graph makes, a copy."""
        self.symbol(name)
        return self._tensor(name).clone() if name in self._made_slots else self._tensor(name)

    def gradient(self, name: str) -> torch.Tensor:
        """The gradient of ``name`` from the last backward, contributions added up, in the program's dtype.

        Raises:
            UnknownTensor: no gradient flows into it, or backward has not run.
        """
        symbol = self.symbol(name)
        parts = next((g.gradients[name] for g in self.pef.graphs.values() if name in g.gradients), ())
        tensors = [self._slots[self._slot_of[part]] for part in parts]
        if not tensors or any(tensor is None for tensor in tensors):
            raise UnknownTensor(f"tensor {name!r} has no gradient: it needs a training PEF and a run of 'bckwd'")
        total = sum(t.to(torch.float32) for t in tensors if t is not None)
        assert isinstance(total, torch.Tensor)
        return total.to(getattr(torch, symbol.host_dtype))

    def seed(self, output: str, value: torch.Tensor | None) -> None:
        """Set the incoming gradient of an output, until set again; None restores the default."""
        for graph in self.pef.graphs.values():
            if (name := graph.seeds.get(output)) is not None:
                tensor = self._tensor(name)
                if value is None:
                    tensor.fill_(1 if output in graph.losses else 0)
                else:
                    if value.shape != tensor.shape:
                        raise ShapeMismatch(
                            f"the gradient of {output!r} has shape {list(value.shape)}, legal is {list(tensor.shape)}"
                        )
                    tensor.copy_(value)
                return
        raise UnknownTensor(f"output {output!r} takes no gradient: it is not an output of a training graph")

    def _tensor(self, name: str) -> torch.Tensor:
        tensor = self._slots[self._slot_of[name]]
        if tensor is None:
            raise UnknownTensor(f"tensor {name!r} has no value: run the section that makes it first")
        return tensor

    # -- running -----------------------------------------------------------------------------------------------------

    def choose_sections(
        self, graph: Graph, types: Iterable[str] | None = None, ids: Iterable[int] | None = None
    ) -> tuple[int, ...]:
        """Section ids to run, in schedule order.

        Raises:
            InvalidArgument: an unknown type or id; the message lists the legal ones.
        """
        present = {self.pef.sections[i].type for i in graph.schedule}
        if ids is not None:
            chosen = set(ids)
            if unknown := chosen - set(graph.schedule):
                raise InvalidArgument(
                    f"graph {graph.name!r} has no section {min(unknown)}; legal: {list(graph.schedule)}"
                )
            return tuple(i for i in graph.schedule if i in chosen)
        if types is None:
            return graph.schedule
        wanted: set[SectionType] = set()
        for word in types:
            try:
                wanted.add(SectionType(word.lower().lstrip("$")))
            except ValueError:
                legal = [kind.value for kind in SectionType if kind in present]
                raise InvalidArgument(f"section type {word!r} does not exist; this graph has {legal}") from None
        if missing := (wanted - present) & {SectionType.FWD, SectionType.BCKWD, SectionType.OPT}:
            legal = [kind.value for kind in SectionType if kind in present]
            raise InvalidArgument(
                f"graph {graph.name!r} has no section of type {min(missing).value!r}, it has {legal}; compile it with "
                "an optimizer to train"
            )
        return tuple(i for i in graph.schedule if self.pef.sections[i].type in wanted)

    def find_graph(self, name: str | None) -> Graph:
        """The graph called ``name``; without a name, the only one.

        Raises:
            InvalidArgument: no such graph, or several and no name.
        """
        graphs = self.pef.graphs
        if name is None and len(graphs) == 1:
            return next(iter(graphs.values()))
        if name is None or name not in graphs:
            asked = "no graph_name was given" if name is None else f"there is no graph {name!r}"
            raise InvalidArgument(f"{asked}; the PEF's graphs are {', '.join(graphs)}")
        return graphs[name]

    def run(self, graph: Graph, sections: tuple[int, ...], scalars: Mapping[str, float]) -> None:
        """Run ``sections`` in order; ``scalars`` must hold every hyperparameter of the PEF.

        Raises:
            InvalidArgument: a section reads what no earlier run has left in memory.
        """
        key = (graph.name, sections)
        plan = self._plans.get(key)
        if plan is None:
            plan = self._plans[key] = self._plan(graph, sections)
        slots = self._slots
        for kind, name, slot in plan.needs:
            if slots[slot] is None:
                raise InvalidArgument(f"section type {kind!r} needs {name!r}: run the sections before it first ('fwd')")
        page = self.page
        page.enter(EXECUTE)
        began = time.perf_counter()
        try:
            self._run_plan(plan, scalars)
        except BaseException:
            page.enter(HOST)
            raise
        ran = self._ran.setdefault(key, [0, 0.0])
        ran[0] += 1
        ran[1] += time.perf_counter() - began
        cost = plan.cost
        page.count_run(len(plan.steps), cost.cycles, cost.flops, cost.ddr_read, cost.ddr_written)

    def _run_plan(self, plan: Plan, scalars: Mapping[str, float]) -> None:
        steps = plan.steps
        with torch.no_grad():
            if self._rates and scalars is not self._held:
                self._hold(scalars)
            if self.section_seconds is None:
                for step in steps:
                    self._run_step(step, scalars)
            else:
                for step in steps:
                    start = time.perf_counter()
                    self._run_step(step, scalars)
                    self.section_seconds.append((step.section.id, time.perf_counter() - start))
            if plan.stores:
                self._store(plan.stores)

    def _hold(self, scalars: Mapping[str, float]) -> None:
        """Copy scalars that sections read as tensors into their places."""
        for name in self._rates:
            self._tensor(name).fill_(scalars[name])
        self._held = scalars

    def _store(self, stores: Sequence[Store]) -> None:
        """Copy outputs into the regions they share, after all sections: until then these read the old values.

        What lies in shared memory itself, such as a view of an input, is copied aside first.
        """
        slots, pef = self._slots, self.pef
        for store in stores:
            made = slots[store.slot]
            assert made is not None
            if self._begin <= made.untyped_storage().data_ptr() < self._end:
                slots[store.slot] = made.clone()
        for store in stores:
            made = slots[store.slot]
            assert made is not None
            store.home.copy_(made)
            self._stored[pef.symbols[store.name].region] = store.name

    def _run_step(self, step: Step, scalars: Mapping[str, float]) -> None:
        slots = self._slots
        made = step.kernel([slots[i] for i in step.inputs], scalars)  # type: ignore[misc]
        if step.written:
            made = self._write_back(step, made)
        for slot, tensor in zip(step.outputs, made, strict=True):
            slots[slot] = tensor
        for slot in step.freed:
            slots[slot] = None

    def _write_back(self, step: Step, made: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Copy what belongs into memory of its own there; the other outputs as they are."""
        kept = list(made)
        for position, slot in step.written:
            held = self._slots[slot]
            assert held is not None
            kept[position] = held.copy_(made[position])
        return kept

    def _plan(self, graph: Graph, sections: tuple[int, ...]) -> Plan:
        """Bind sections to slots and find what is dead after each.

        An activation may be freed after its last reader in the graph, if that reader is among ``sections``.
        """
        position = {section: i for i, section in enumerate(graph.schedule)}
        last_reader: dict[str, int] = {}
        for number in graph.schedule:
            for name in (*self.pef.sections[number].inputs, *self.pef.sections[number].outputs):
                last_reader[name] = max(last_reader.get(name, -1), position[number])
        slot_of = dict(self._slot_of)
        for number in graph.schedule:
            slot_of.update({n: self._made_slots[n] for n in self.pef.sections[number].outputs if n in self._made_slots})
        steps: list[Step] = []
        stores: list[Store] = []
        for chosen in sections:
            section = self.pef.sections[chosen]
            touched = dict.fromkeys((*section.inputs, *section.outputs))
            freed = [
                slot_of[name]
                for name in touched
                if self.pef.symbols[name].kind is SymbolKind.ACTIVATION and last_reader[name] == position[chosen]
            ]
            steps.append(
                Step(
                    section,
                    self._kernels[section.kernel],
                    tuple(slot_of[name] for name in section.inputs),
                    tuple(slot_of[name] for name in section.outputs),
                    tuple(
                        (index, slot_of[name])
                        for index, name in enumerate(section.outputs)
                        if self.pef.symbols[name].kind in PERSISTENT and name not in self._made_slots
                    ),
                    tuple(freed),
                )
            )
            for name in section.outputs:
                if (home := self._home(name)) is not None:
                    stores.append(Store(name, slot_of[name], home))
        return Plan(tuple(steps), self._needs(steps), _cost_of(steps), tuple(stores))

    def _home(self, name: str) -> torch.Tensor | None:
        """Where an output that outlives the run is kept; None for one that does not."""
        if name in self._made_slots:
            return self._slots[self._slot_of[name]]
        return self._homes.get(name)

    def _needs(self, steps: Sequence[Step]) -> tuple[tuple[str, str, int], ...]:
        """What the steps read and neither make themselves nor find in persistent memory."""
        needs: list[tuple[str, str, int]] = []
        made: set[int] = set()
        for step in steps:
            for name, slot in zip(step.section.inputs, step.inputs, strict=True):
                made_here = slot == self._made_slots.get(name)
                if slot not in made and (made_here or self.pef.symbols[name].kind not in PERSISTENT):
                    needs.append((step.section.type.value, name, slot))
            made.update(step.outputs)
        return tuple(needs)

    @property
    def counters(self) -> Counters:
        """What has run so far."""
        total = Counters()
        for key, (runs, host_seconds) in self._ran.items():
            plan, count = self._plans[key], int(runs)
            total.runs += count
            total.sections += count * len(plan.steps)
            total.emulated_cycles += count * plan.cost.cycles
            total.emulated_seconds += count * plan.cost.seconds
            total.flops += count * plan.cost.flops
            total.bytes += count * (plan.cost.ddr_read + plan.cost.ddr_written)
            total.host_seconds += host_seconds
            for step in plan.steps:
                total.section_runs[step.section.id] = total.section_runs.get(step.section.id, 0) + count
        return total


def _cost_of(steps: Sequence[Step]) -> PlanCost:
    costs = [step.section.cost for step in steps]
    return PlanCost(
        sum(cost.cycles for cost in costs),
        sum(cost.seconds for cost in costs),
        sum(cost.flops for cost in costs),
        sum(cost.bytes_in + cost.bytes_weights for cost in costs),
        sum(cost.bytes_out for cost in costs),
    )
