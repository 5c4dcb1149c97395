"""A loaded PEF that can run: symbols as slots, sections as steps over them."""

import time
from collections.abc import Iterable, Mapping, Sequence

import torch

from rdukit.errors import InvalidArgument
from rdukit.pef.model import Graph, Pef
from rdukit_runtime.engine.device_tensors import DeviceTensors
from rdukit_runtime.engine.plans import (
    Counters,
    Plan,
    Step,
    Store,
    choose_sections,
    count_plans,
    find_graph,
    make_plan,
)
from rdukit_runtime.engine.portable import Kernel
from rdukit_runtime.status_page import EXECUTE, HOST, StatusPage


class Program(DeviceTensors):
    """Slots and steps of one PEF.

    Args:
        memory: writable, zeroed, at least as large as ``persistent_layout`` says.
        kernels: by digest.
        page: where runs, phases and transfers are counted, for whoever looks at the node.
    """

    def __init__(
        self, pef: Pef, kernels: Mapping[str, Kernel], memory: memoryview, page: StatusPage | None = None
    ) -> None:
        super().__init__(pef, memory, page)
        #: Runs and host seconds of each plan; ``counters`` adds them up.
        self._ran: dict[tuple[str, tuple[int, ...]], list[float]] = {}
        self._kernels = kernels
        self._plans: dict[tuple[str, tuple[int, ...]], Plan] = {}
        #: While a program measures: host seconds of each section that ran, in order; None otherwise.
        self.section_seconds: list[tuple[int, float]] | None = None
        #: Symbols that hold a run-time scalar, such as a dropout rate, and the scalars that they hold now.
        self._rates = tuple(name for name in pef.hyperparameters if name in self._slot_of)
        self._held: Mapping[str, float] | None = None

    def choose_sections(
        self, graph: Graph, types: Iterable[str] | None = None, ids: Iterable[int] | None = None
    ) -> tuple[int, ...]:
        """Section ids to run, in schedule order.

        Raises:
            InvalidArgument: an unknown type or id; the message lists the legal ones.
        """
        return choose_sections(self.pef, graph, types, ids)

    def find_graph(self, name: str | None) -> Graph:
        """The graph called ``name``; without a name, the only one.

        Raises:
            InvalidArgument: no such graph, or several and no name.
        """
        return find_graph(self.pef, name)

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
        return make_plan(self.pef, graph, sections, self._kernels, self._slot_of, self._made_slots, self._home)

    def _home(self, name: str) -> torch.Tensor | None:
        """Where an output that outlives the run is kept; None for one that does not."""
        if name in self._made_slots:
            return self._slots[self._slot_of[name]]
        return self._homes.get(name)

    @property
    def counters(self) -> Counters:
        """What has run so far."""
        return count_plans((self._plans[key], int(runs), seconds) for key, (runs, seconds) in self._ran.items())
