"""A loaded PEF that can run: symbols as slots, sections as steps over them. A watch checks memory after each run."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from time import monotonic_ns
from typing import NamedTuple

import torch

from rdukit.errors import InvalidArgument, PefCorrupt, RdukitError, RuntimeFault
from rdukit.pef.memory import PERSISTENT, MemoryPlan, MemoryWalk
from rdukit.pef.model import Graph, Pef, Section
from rdukit.settings import CHECK, resolve
from rdukit.units import format_bytes
from rdukit_node.status_page import EXECUTE, HOST, StatusPage
from rdukit_runtime.collectives.elastic import check_device
from rdukit_runtime.collectives.group import Collectives
from rdukit_runtime.collectives.grouping import find_reduce
from rdukit_runtime.collectives.replacement import JoiningProcessGroup, RankTensors
from rdukit_runtime.engine.device import CPU, device_numbers, out_of_memory, synchronise
from rdukit_runtime.engine.device_tensors import DeviceTensors, copy_between, copy_into
from rdukit_runtime.engine.gradient_exchange import GradientExchange, PlacedGroup
from rdukit_runtime.engine.native_run import HandleTable, NativeRun, group_steps
from rdukit_runtime.engine.parameter_sets import ParameterSet
from rdukit_runtime.engine.plans import (
    Counters,
    ExecutionPlan,
    PlanStep,
    RegionStore,
    choose_sections,
    count_plans,
    find_graph,
    make_plan,
    section_failed,
)
from rdukit_runtime.engine.portable import Kernel
from rdukit_runtime.engine.program_lines import calling_line
from rdukit_runtime.engine.threads import LeasedThreads, gains_from_threads

#: Tensors of the host by the symbols that they stand for; nanoseconds of copying in, computing, copying out.
HostTensors = Sequence[tuple[str, torch.Tensor]]
RunTimes = tuple[int, int, int]


class ReadyPlan(NamedTuple):
    """A plan as the program runs it: its steps, with consecutive native ones joined; the groups of gradients whose
    averaging begins between them; and whether several threads pay.
    """

    plan: ExecutionPlan
    parts: tuple[PlanStep | NativeRun | PlacedGroup, ...]
    gains_from_threads: bool


class LoadedProgram(DeviceTensors):
    """Slots and steps of one PEF.

    Args:
        memory: writable, zeroed, at least as large as ``persistent_layout`` requires. kernels: kernels by digest. page:
            status page that counts runs, phases and transfers. device: device of the memory and of ``kernels``.
            threads: threads of the lease; ``None``: torch's number.
    """

    def __init__(
        self, pef: Pef, kernels: Mapping[str, Kernel], memory: memoryview, page: StatusPage | None = None,
        device: torch.device = CPU, threads: LeasedThreads | None = None,
    ) -> None:  # fmt: skip
        super().__init__(pef, memory, page, device)
        self._threads = threads
        #: Runs and host seconds of each plan; ``counters`` adds them up.
        self._ran: dict[tuple[str, tuple[int, ...]], list[float]] = {}
        self._kernels = kernels
        self._plans: dict[tuple[str, tuple[int, ...]], ReadyPlan] = {}
        self._handles = HandleTable(len(self._slots))
        #: Averages gradients over ranks; None before the ranks have met, and on a GPU.
        self.exchange: GradientExchange | None = None
        #: While a set of parameters is used: the program's own tensors in its slots.
        self._own: dict[int, torch.Tensor | None] = {}
        #: Sections that have not yet run as generated code: a kernel's results are compared with its symbols once.
        self._unseen = {section.id for section in pef.sections}
        #: While a program measures: host seconds of each section that ran, in order; None otherwise.
        self.section_seconds: list[tuple[int, float]] | None = None
        #: Symbols with a run-time scalar, such as a dropout rate, and their present values.
        self._rates = tuple(name for name in pef.hyperparameters if name in self._slot_of)
        self._held: Mapping[str, float] | None = None
        #: Compares the contents of slots with the plan, until a run fails. None without ``RDUKIT_CHECK``, and on a GPU:
        #: its kernels may keep statistics in wider dtypes than those of the plan.
        self._watch = MemoryWatch(pef) if resolve(CHECK) and device.type == "cpu" else None

    def use(self, parameters: ParameterSet | None) -> None:
        """Use the parameters of a set from now on; None: the program's own. Copies nothing.

        The former set may be closed afterwards; the used one may not.
        """
        slots = self._slots
        if parameters is None:
            for slot, tensor in self._own.items():
                slots[slot] = tensor
            self._handles.replace(list(self._own), [None] * len(self._own))
            self._handles.keep(set(self._own), slots)
            self._own, self._set_addresses = {}, range(0)
            return
        places = [self._slot_of[name] for name in parameters.tensors]
        self._own = self._own or {slot: slots[slot] for slot in places}
        for slot, tensor in zip(places, parameters.tensors.values(), strict=True):
            slots[slot] = tensor
        self._handles.replace(places, parameters.handles)
        self._set_addresses = parameters.addresses

    def exchange_gradients(self, group: Collectives | JoiningProcessGroup, state: RankTensors | None = None) -> None:
        """Average gradients over the ranks from now on, as ``GradientExchange`` does; a collective.

        Does nothing on a GPU: its gradients are averaged when backward has ended.

        Raises:
            InvalidArgument: the ranks should continue after a loss, but compute on a GPU.
        """
        check_device(self.device.type)
        if self.device.type == "cpu":
            self.exchange = GradientExchange(self.pef, self._slot_of, group, state)
            self._placed_addresses = self.exchange.addresses
            self._plans = {key: self._plan(self.pef.graphs[key[0]], key[1]) for key in self._plans}

    def choose_sections(
        self, graph: Graph, types: Iterable[str] | None = None, ids: Iterable[int] | None = None
    ) -> tuple[int, ...]:
        """Return section ids to run, in schedule order.

        Raises:
            InvalidArgument: an unknown type or id; the message lists the legal ones.
        """
        return choose_sections(self.pef, graph, types, ids)

    def find_graph(self, name: str | None) -> Graph:
        """Return the graph called ``name``; without a name, the only one, evaluation graphs apart.

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
        ready = self._ready(graph, sections)
        plan = ready.plan
        slots = self._slots
        for kind, name, slot in plan.needs:
            if slots[slot] is None:
                raise InvalidArgument(f"section type {kind!r} needs {name!r}: run the sections before it first ('fwd')")
        page = self.page
        page.enter(EXECUTE)
        began = time.perf_counter()
        threads = self._threads
        former = 0 if threads is None else threads.begin(ready.gains_from_threads)
        try:
            if self.device.type == "cpu":
                self._run_plan(ready, scalars)
            else:
                self._run_elsewhere(ready, scalars)
        except BaseException:
            self._watch = None
            page.enter(HOST)
            self._drop_placed(plan.placed)
            raise
        finally:
            if threads is not None:
                threads.end(former)
        ran = self._ran.setdefault(key, [0, 0.0])
        ran[0] += 1
        ran[1] += time.perf_counter() - began
        for slot in plan.released:
            slots[slot] = None
        cost = plan.cost
        page.count_run(len(plan.steps), cost.cycles, cost.flops, cost.ddr_read, cost.ddr_written)
        if cost.sent:
            page.count_links(cost.received, cost.sent)
        if self._watch is not None:
            self._watch.check(graph, sections, (t for t in slots if t is not None and not self._is_persistent(t)))

    def repeated(
        self, graph: Graph, sections: tuple[int, ...], scalars: Mapping[str, float], inputs: HostTensors,
        outputs: HostTensors,
    ) -> Callable[[], RunTimes]:  # fmt: skip
        """Return a function that copies ``inputs`` at the time of its call, runs ``sections``, and copies to
        ``outputs``.

        It is for servers, which repeat one call: a single native call is bound once. For a small section the overhead
        of ``run`` takes as long as the section itself, and longer with cold caches.

        Raises:
            UnknownTensor, ShapeMismatch: as ``write``; the call raises what ``run`` and ``read_into`` do.
        """
        write = self.writer(inputs)
        ready = self._ready(graph, sections)
        part, plan = ready.parts[0], ready.plan
        is_bound = isinstance(part, NativeRun) and part.is_closed and len(ready.parts) == 1
        is_bound = is_bound and not (
            plan.needs or plan.stores or plan.cost.sent or self._rates or self._watch or self._threads is None
        )
        if is_bound and not any(self.pef.symbols[name].scale for name, _ in inputs):
            assert isinstance(part, NativeRun)
            return self._bound(ready, part, self._ran.setdefault((graph.name, sections), [0, 0.0]), inputs, outputs)

        def run() -> RunTimes:
            began = monotonic_ns()
            write()
            written = monotonic_ns()
            self.run(graph, sections, scalars)
            ran = monotonic_ns()
            for name, destination in outputs:
                self.read_into(name, destination)
            return written - began, ran - written, monotonic_ns() - ran

        return run

    def _bound(
        self, ready: ReadyPlan, part: NativeRun, ran: list[float], inputs: HostTensors, outputs: HostTensors
    ) -> Callable[[], RunTimes]:
        """Return ``repeated`` for one native call all of whose inputs are persistent."""
        page, threads, slots, gains = self.page, self._threads, self._slots, ready.gains_from_threads
        assert threads is not None
        sources = [copy_between(self._tensor(name), value) for name, value in inputs]
        targets = [(self._slot_of[name], copy_into(destination)) for name, destination in outputs]
        bytes_in = sum(self.pef.symbols[name].bytes for name, _ in inputs)
        bytes_out = sum(self.pef.symbols[name].bytes for name, _ in outputs)
        call, cost, replaced = part.bind(slots, self._handles.handles), ready.plan.cost, ready.plan.replaced
        counts = (len(ready.plan.steps), cost.cycles, cost.flops, cost.ddr_read, cost.ddr_written)

        def run() -> RunTimes:
            page.enter(EXECUTE)
            began = monotonic_ns()
            former = threads.begin(gains)
            try:
                for copy in sources:
                    copy()
                for slot in replaced:
                    slots[slot] = None
                written = monotonic_ns()
                call()
                computed = monotonic_ns()
                for slot, keep in targets:
                    keep(slots[slot])  # type: ignore[arg-type]
            except BaseException:
                page.enter(HOST)
                raise
            finally:
                threads.end(former)
            ended = monotonic_ns()
            times = (written - began, computed - written, ended - computed)
            ran[0] += 1
            ran[1] += times[1] / 1e9
            page.count_run(*counts, times[0] + times[2], bytes_in, bytes_out)
            return times

        return run

    def _run_elsewhere(self, ready: ReadyPlan, scalars: Mapping[str, float]) -> None:
        """Run a plan on a GPU."""
        try:
            with device_numbers(self.device):
                self._run_plan(ready, scalars)
        except torch.OutOfMemoryError as cause:
            raise out_of_memory(0, self.device) from cause

    def _run_plan(self, ready: ReadyPlan, scalars: Mapping[str, float]) -> None:
        plan, slots = ready.plan, self._slots
        for slot in plan.replaced:
            slots[slot] = None
        if self.exchange is not None:
            for slot in plan.placed:
                slots[slot] = self.exchange.homes[slot]
        if torch.is_grad_enabled():
            with torch.no_grad():
                self._run_parts(ready, scalars)
        else:  # a process that only serves switches it off once: the block costs as much as a small section's call
            self._run_parts(ready, scalars)

    def _run_parts(self, ready: ReadyPlan, scalars: Mapping[str, float]) -> None:
        slots, exchange = self._slots, self.exchange
        if self._rates and scalars is not self._held:
            self._hold(scalars)
        seconds = self.section_seconds
        waits = seconds is not None and self.device.type != "cpu"
        line = "" if exchange is None else calling_line()
        for part in ready.parts:
            if exchange is not None and not isinstance(part, PlacedGroup):
                exchange.note(f"in {_sections_of(part)} of the run at {line}")
            if isinstance(part, NativeRun):
                part.run(slots, self._handles.handles, seconds)
            elif isinstance(part, PlacedGroup):
                assert exchange is not None, "its groups are in the plan"
                exchange.begin(part, slots)
            elif seconds is None:
                self._run_step(part, scalars)
            else:
                if waits:
                    synchronise(self.device)
                start = time.perf_counter()
                self._run_step(part, scalars)
                if waits:
                    synchronise(self.device)
                seconds.append((part.section.id, time.perf_counter() - start))
        if ready.plan.stores:
            self._store(ready.plan.stores)
        if exchange is not None:
            exchange.note(f"past the run at {line}")

    def _hold(self, scalars: Mapping[str, float]) -> None:
        """Copy scalars that sections read as tensors into their places."""
        for name in self._rates:
            self._tensor(name).fill_(scalars[name])
        self._held = scalars

    def _store(self, stores: Sequence[RegionStore]) -> None:
        """Copy outputs into the regions they share, after all sections: until then these read the old values.

        Values that lie in shared memory themselves, such as a view of an input, are copied aside first.
        """
        slots, pef = self._slots, self.pef
        for store in stores:
            made = slots[store.slot]
            assert made is not None
            if self._is_persistent(made):
                slots[store.slot] = made.clone()
        for store in stores:
            made = slots[store.slot]
            assert made is not None
            store.home.copy_(made)
            self._stored[pef.symbols[store.name].region] = store.name

    def _run_step(self, step: PlanStep, scalars: Mapping[str, float]) -> None:
        slots = self._slots
        inputs = [slots[i] for i in step.inputs]
        for slot in step.taken:
            slots[slot] = None
        try:
            made = step.kernel(inputs, scalars)  # type: ignore[arg-type]
        except (RdukitError, torch.OutOfMemoryError):
            raise
        except Exception as cause:
            raise section_failed(step.section, cause) from cause
        if step.section.id in self._unseen:
            self._check_made(step.section, made)
        if step.written:
            made = self._write_back(step, made)
        for slot, tensor in zip(step.outputs, made, strict=True):
            slots[slot] = tensor
        for slot in step.freed:
            slots[slot] = None

    def _check_made(self, section: Section, made: Sequence[torch.Tensor]) -> None:
        """Compare the results of a kernel with the symbols of its section, since a PEF may come from anywhere.

        Raises:
            PefCorrupt: a shape differs; a copy would broadcast it over the symbol silently.
        """
        for name, tensor in zip(section.outputs, made, strict=True):
            shape = self.pef.symbols[name].shape
            if not isinstance(tensor, torch.Tensor) or tuple(tensor.shape) != shape:
                found = list(tensor.shape) if isinstance(tensor, torch.Tensor) else "no tensor"
                raise PefCorrupt(
                    f"section {section.id} of the PEF declares {name!r} with shape {list(shape)}, but its kernel "
                    f"returns {found}; compile again"
                )
        self._unseen.discard(section.id)

    def _write_back(self, step: PlanStep, made: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Copy outputs with memory of their own there; return the others unchanged."""
        kept = list(made)
        for position, slot in step.written:
            held = self._slots[slot]
            assert held is not None
            kept[position] = held.copy_(made[position])
        return kept

    def _ready(self, graph: Graph, sections: tuple[int, ...]) -> ReadyPlan:
        key = (graph.name, sections)
        if key not in self._plans:
            self._plans[key] = self._plan(graph, sections)
        return self._plans[key]

    def _plan(self, graph: Graph, sections: tuple[int, ...]) -> ReadyPlan:
        homes = {} if self.exchange is None else self.exchange.homes
        plan = make_plan(
            self.pef, graph, sections, self._kernels, self._slot_of, self._made_slots, self._home, homes.keys()
        )
        persistent = {slot for name, slot in self._slot_of.items() if self.pef.symbols[name].kind in PERSISTENT}
        parts = self._parts(graph, plan, persistent | homes.keys())
        tensors = [homes.get(slot, tensor) for slot, tensor in enumerate(self._slots)]
        for part in parts:
            if isinstance(part, NativeRun):
                self._handles.keep(part.persistent, tensors)
        return ReadyPlan(plan, parts, gains_from_threads(step.section.cost for step in plan.steps))

    def _parts(
        self, graph: Graph, plan: ExecutionPlan, persistent: Set[int]
    ) -> tuple[PlanStep | NativeRun | PlacedGroup, ...]:
        """Join native steps, and let each group of gradients begin after its section if ``reduce`` follows."""
        exchange, reduce = self.exchange, find_reduce(self.pef, graph)
        ran = [step.section.id for step in plan.steps]
        groups = exchange.groups[graph.name] if exchange is not None and reduce in ran else ()
        if exchange is None or reduce not in ran:
            return group_steps(plan.steps, persistent)
        if not groups:
            steps = [s._replace(kernel=self._average) if s.section.id == reduce else s for s in plan.steps]
            return group_steps(steps, persistent)

        def finish(inputs: Sequence[torch.Tensor], scalars: Mapping[str, float]) -> list[torch.Tensor]:
            self._follow(exchange.finish(groups, self._slots))
            return [exchange.homes[slot] for slot in means]

        means = next(step.outputs for step in plan.steps if step.section.id == reduce)
        parts: list[PlanStep | NativeRun | PlacedGroup] = []
        steps = []
        for step in plan.steps:
            steps.append(step._replace(kernel=finish) if step.section.id == reduce else step)
            if leaving := [group for group in groups if exchange.overlaps and group.section == step.section.id]:
                parts += [*group_steps(steps, persistent), *leaving]
                steps = []
        return (*parts, *group_steps(steps, persistent))

    def _average(self, inputs: Sequence[torch.Tensor], scalars: Mapping[str, float]) -> list[torch.Tensor]:
        """Run ``reduce`` of gradients that have no places."""
        assert self.exchange is not None, "it is a step of plans with an exchange"
        means, former = self.exchange.average(list(inputs))
        self._follow(former)
        return means

    def _follow(self, former: Mapping[int, torch.Tensor]) -> None:
        """Use the new places of gradients from now on; ``former`` are the places before a rank was lost."""
        if self.exchange is None or not former:
            return
        self._placed_addresses = self.exchange.addresses
        self._handles.renew(self.exchange.homes)
        for slot, home in former.items():
            if self._slots[slot] is home:
                self._slots[slot] = self.exchange.homes[slot]

    def _drop_placed(self, placed: Iterable[int]) -> None:
        """Forget gradients of a run that failed, after the group that is under way."""
        if self.exchange is not None:
            self.exchange.abandon()
        for slot in placed:
            self._slots[slot] = None

    def _home(self, name: str) -> torch.Tensor | None:
        """Return the place of an output that outlives the run; None for other outputs."""
        if name in self._made_slots:
            return self._slots[self._slot_of[name]]
        return self._homes.get(name)

    @property
    def counters(self) -> Counters:
        """Counters of the runs so far."""
        return count_plans((self._plans[key].plan, int(runs), seconds) for key, (runs, seconds) in self._ran.items())


def _sections_of(part: PlanStep | NativeRun) -> str:
    names = [step.section.name for step in part.steps] if isinstance(part, NativeRun) else [part.section.name]
    return f"section {names[0]}" if len(names) == 1 else f"sections {names[0]} to {names[-1]}"


class MemoryWatch:
    """Follows a program's runs by the plan, from load until a run fails: the plan does not describe the state after a
    failed run.

    Switched on by ``RDUKIT_CHECK``.
    """

    def __init__(self, pef: Pef) -> None:
        self._walk = MemoryWalk(pef)

    def check(self, graph: Graph, sections: Sequence[int], passing: Iterable[torch.Tensor]) -> MemoryPlan:
        """Check memory that slots hold outside persistent memory (``passing``) after ``sections`` have run.

        Returns:
            The plan of this run.
        Raises:
            RuntimeFault: they keep more memory than the plan says.
        """
        plan = self._walk.run(graph, sections)
        held = held_bytes(passing)
        if held > plan.end_bytes:
            raise RuntimeFault(
                f"internal: after sections {list(sections)[:8]} of graph {graph.name!r} the engine keeps "
                f"{format_bytes(held)} besides persistent memory, but the plan allows {format_bytes(plan.end_bytes)}"
            )
        return plan


def held_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Return bytes of memory that the tensors keep: each storage once."""
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
    return sum(storages.values())
