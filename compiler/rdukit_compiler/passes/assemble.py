"""Assemble kernels and plans: symbols, sections in schedule order, gradients and their contributions."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from rdukit.collectives.plan import plan_collective
from rdukit.collectives.projection import default_machine
from rdukit.collectives.steps import Op
from rdukit.errors import CompileError, UnsupportedOperator
from rdukit.hardware import ChipSpec
from rdukit.pef.kernel import KernelGraph
from rdukit.pef.model import Cost, Graph, Section, SectionResources, SectionType, Symbol, SymbolKind
from rdukit_compiler.chips.cut import OUTPUT
from rdukit_compiler.chips.gradients import ChipGradient, find_chip_gradients
from rdukit_compiler.chips.splitter import HOST_CHIP
from rdukit_compiler.cost import operator_work, project
from rdukit_compiler.cost.host_memory import kernel_memory
from rdukit_compiler.cost.traffic import derivable_extras, looked_up_bytes
from rdukit_compiler.ir import ChipPiece, ModelGraph, Value, ValueKind
from rdukit_compiler.optimizer import (
    STATES,
    TAKES_NARROW,
    OptimizerGroup,
    OptimizerKernel,
    accumulated_name,
    build_accumulation,
    build_chip_gradient,
    build_gradnorm,
    build_optimizer,
    build_reduce,
    gradient_name,
)
from rdukit_compiler.options import CompileOptions
from rdukit_compiler.passes.assembly import KINDS, MADE_OR_TAKEN, Assembly, host_dtype, link_bandwidth, loss_outputs
from rdukit_compiler.passes.assign_precision import Precision
from rdukit_compiler.passes.cut_sections import SectionPlan
from rdukit_compiler.passes.differentiate import OperatorShape, SectionKernels
from rdukit_compiler.passes.gradient_outputs import accumulate_gradients, has_own_memory, narrow_gradients
from rdukit_compiler.passes.host_operators import HOST
from rdukit_compiler.passes.quantize_weights import scale_name

_NOTHING: Final[Mapping[str, int]] = {}


def assemble_graph(
    assembly: Assembly, traced: ModelGraph, graph: ModelGraph, plans: Sequence[SectionPlan],
    groups: tuple[OptimizerGroup, ...], options: CompileOptions,
) -> Graph:  # fmt: skip
    """Add a graph's symbols and sections to ``assembly``.

    Args:
        traced: the graph with the program's dtypes; ``graph``: the same with the device's.
    """
    return _GraphAssembler(assembly, traced, graph, options).run(plans, groups)


class _GraphAssembler:
    def __init__(self, assembly: Assembly, traced: ModelGraph, graph: ModelGraph, options: CompileOptions) -> None:
        self._assembly = assembly
        self._traced = traced
        self._graph = graph
        self._options = options
        self._chip: ChipSpec = options.chip
        self._operators = {operator.name: operator for operator in graph.operators}
        #: Value → symbols of the gradients that flow into it.
        self._gradients: dict[str, list[str]] = {}
        #: Parameter → symbol of the gradient from later sections, to which earlier ones add theirs.
        self._totals: dict[str, str] = {}
        #: Parameters whose gradient the optimizer accepts in bf16, and symbols of gradients in bf16.
        self._narrowable: frozenset[str] = frozenset()
        self._narrow: set[str] = set()
        #: Section plan → parameters whose gradients it adds to the sums so far.
        self._added: dict[str, tuple[str, ...]] = {}
        self._scheduled: list[int] = []
        #: Names of sections of the graphs before this one: values saved for backward must not share their symbols.
        self._taken = {section.name for section in assembly.sections}
        #: Name in this graph → its symbol.
        self._kinds: dict[str, SymbolKind] = {}
        self._places = assembly.places
        self._made_on: dict[str, int] = {}  # symbol → the chip whose section makes it

    def run(self, plans: Sequence[SectionPlan], groups: tuple[OptimizerGroup, ...]) -> Graph:
        graph, training = self._graph, not self._options.inference
        for value in graph.values.values():
            if value.name in graph.pieces:
                self._add_piece(value, graph.pieces[value.name])
            elif value.kind is not ValueKind.OPERATOR:
                self._symbol(value.name, KINDS[value.kind], value.dtype, value.shape)
        self._assembly.hyperparameters.update(graph.rates)
        losses = loss_outputs(graph) if training else ()
        seeds = self._add_seeds() if training else {}
        precision = Precision(self._options.base_precision, training)
        self._narrowable = self._find_narrowable(plans, groups)
        built: list[SectionKernels] = []
        for plan in reversed(plans):
            kernels = self._assembly.cache.build(
                graph,
                [self._operators[name] for name in plan.operators],
                precision,
                {name: len(symbols) for name, symbols in self._gradients.items()},
            )
            built.append(self._record_gradients(kernels, plan))
        self._order_by_chip()
        backward_inputs = [
            self._backward_bindings(plan.name, k) for plan, k in zip(reversed(plans), built, strict=True)
        ]
        for plan, kernels in zip(plans, reversed(built), strict=True):
            self._add_forward(plan, kernels)
        for plan, kernels, inputs in zip(reversed(plans), built, backward_inputs, strict=True):
            if kernels.backward is not None:
                outputs = tuple(self._gradient_symbol(name, plan.name) for name in kernels.gradients)
                read = self._moved(plan, kernels)[1]
                self._add_section(
                    plan, SectionType.BCKWD, kernels.backward, inputs, outputs, kernels.backward_work, (read, outputs)
                )
        self._check_updates(plans, built)
        for gradient in find_chip_gradients(graph, self._gradients, self._made_on) if graph.chips > 1 else ():
            self._add_chip_gradient(gradient)
        finish = self._add_accumulation(groups) if groups and self._options.accumulates else None
        before, arriving = len(self._scheduled), self._as_tuples()
        self._add_optimizers(groups)
        if finish is not None:
            self._add_plain_section("end_accumulation", SectionType.OPT, finish, "the next backward begins a new sum")
        if groups and self._options.data_parallel:
            self._add_reduce(groups, arriving, before)
        return Graph(
            name=graph.name,
            inputs=tuple(value.name for value in graph.of_kind(ValueKind.INPUT)),
            outputs=graph.outputs,
            schedule=tuple(self._scheduled),
            seeds=seeds,
            losses=losses,
            gradients={name: tuple(symbols) for name, symbols in self._gradients.items()},
        )

    # -- symbols -----------------------------------------------------------------------------------------------------

    def _symbol(self, name: str, kind: SymbolKind, dtype: str, shape: tuple[int, ...]) -> None:
        if (other := self._kinds.setdefault(name, kind)) is not kind:
            raise CompileError(
                f"two tensors of graph {self._graph.name!r} are called {name!r}: its {other} and its {kind}; rename "
                "the one that the program names"
            )
        known = self._assembly.symbols.get(name)
        if known is not None and MADE_OR_TAKEN.get(known.kind, 0) > MADE_OR_TAKEN.get(kind, 0):
            return  # another graph of this PEF takes it as an input, or shows it as an output
        traced = self._traced.values.get(name)
        self._assembly.symbols[name] = Symbol(
            name, kind, dtype, shape, traced.dtype if traced is not None else host_dtype(dtype),
            self._options.regions.get(name, name), self._scale_of(name, kind, dtype),
        )  # fmt: skip

    def _scale_of(self, name: str, kind: SymbolKind, dtype: str) -> str:
        scale = scale_name(name)
        return (
            scale if kind is SymbolKind.PARAMETER and dtype in {"int8", "uint8"} and scale in self._graph.values else ""
        )

    def _add_seeds(self) -> dict[str, str]:
        seeds: dict[str, str] = {}
        for name in dict.fromkeys(self._graph.outputs):
            value = self._graph.values[name]
            if value.requires_grad and value.kind is ValueKind.OPERATOR:
                seeds[name] = f"{name}__grad"
                self._symbol(seeds[name], SymbolKind.SEED, value.dtype, value.shape)
                self._gradients[name] = [seeds[name]]
        return seeds

    def _add_piece(self, value: Value, piece: ChipPiece) -> None:
        """Add a symbol within the memory of its parent's."""
        parent = self._graph.values[piece.parent]
        region = self._options.regions.get(piece.parent, piece.parent)
        offset = piece.start * parent.bytes // parent.shape[0]
        self._kinds[value.name] = SymbolKind.PIECE
        self._assembly.symbols[value.name] = Symbol(
            value.name, SymbolKind.PIECE, value.dtype, value.shape, value.dtype, region, offset=offset
        )
        self._places.divided.setdefault(piece.parent)

    def _parent(self, name: str) -> str:
        return self._graph.pieces[name].parent if name in self._graph.pieces else name

    def _chip_of(self, plan: SectionPlan) -> int:
        return self._operators[plan.operators[0]].chip

    def _order_by_chip(self) -> None:
        """Order the gradients that flow into each value by chip: they are summed in that order."""
        for symbols in self._gradients.values():
            symbols.sort(key=lambda symbol: self._made_on.get(symbol, -1))

    def _record_gradients(self, kernels: SectionKernels, section: SectionPlan) -> SectionKernels:
        """Record the gradients that a section computes.

        Returns:
            The section's kernels, which add to gradients of later sections if these are large.
        """
        values, plan = self._graph.values, section.name
        added = [name for name in kernels.gradients if name in self._totals]
        kernels, narrow = narrow_gradients(kernels, (name for name in kernels.gradients if name in self._narrowable))
        for name in kernels.gradients:
            if name in added:
                continue
            symbol = f"{name}__grad_from_{plan}"
            dtype = "bfloat16" if name in narrow else values[name].dtype
            self._symbol(symbol, SymbolKind.GRADIENT, dtype, values[name].shape)
            self._gradients.setdefault(name, []).append(symbol)
            self._made_on[symbol] = self._chip_of(section)
            if name in narrow:
                self._narrow.add(symbol)
            elif self._graph.chips > 1 and name not in self._graph.pieces:
                continue  # each chip has a separate gradient
            elif values[name].kind is ValueKind.PARAMETER and has_own_memory(kernels, name, values):
                self._totals[name] = symbol
        self._added[plan] = tuple(added)
        return accumulate_gradients(kernels, added, values)

    def _find_narrowable(self, plans: Sequence[SectionPlan], groups: Sequence[OptimizerGroup]) -> frozenset[str]:
        """Return the parameters that one section reads, and whose gradient only an update that accepts bf16 reads."""
        if self._options.accumulates or self._options.data_parallel or self._graph.chips > 1:
            return frozenset()
        readers = Counter(
            name
            for plan in plans
            for name in {name for operator in plan.operators for name in self._operators[operator].inputs}
        )
        updated = [group for group in groups if group.kind in TAKES_NARROW and group.max_grad_norm is None]
        return frozenset(name for group in updated for name in group.parameters if readers[name] == 1)

    def _gradient_symbol(self, name: str, plan: str) -> str:
        return self._totals[name] if name in self._added[plan] else f"{name}__grad_from_{plan}"

    def _saved_symbol(self, plan: str, index: int) -> str:
        owner = f"{self._graph.name}__{plan}" if plan in self._taken else plan
        return f"{owner}__saved_{index}"

    def _backward_bindings(self, plan: str, kernels: SectionKernels) -> tuple[str, ...]:
        saved = [s.value if s.value is not None else self._saved_symbol(plan, s.index) for s in kernels.saved]
        incoming = [symbol for name in kernels.tangents for symbol in self._gradients[name]]
        return (*saved, *incoming, *(self._totals[name] for name in self._added[plan]))

    # -- sections ----------------------------------------------------------------------------------------------------

    def _add_forward(self, plan: SectionPlan, kernels: SectionKernels) -> None:
        written = {value: buffer for buffer, value in self._graph.updates.items()}
        for name in kernels.outputs:
            if name in written:
                continue
            value = self._graph.values[name]
            kind = SymbolKind.OUTPUT if name in self._graph.outputs else SymbolKind.ACTIVATION
            self._symbol(name, kind, value.dtype, value.shape)
        extras = {s.index: s for s in kernels.saved if s.value is None}
        for index in sorted(extras):
            saved = extras[index]
            self._symbol(self._saved_symbol(plan.name, index), SymbolKind.ACTIVATION, saved.dtype, saved.shape)
        named = (written.get(name, name) for name in kernels.outputs)
        outputs = (*named, *(self._saved_symbol(plan.name, index) for index in sorted(extras)))
        stored = self._moved(plan, kernels)[0]
        self._add_section(
            plan, SectionType.FWD, kernels.forward, kernels.inputs, outputs, kernels.forward_work,
            (kernels.inputs, stored),
        )  # fmt: skip

    def _moved(self, plan: SectionPlan, kernels: SectionKernels) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the tensors that the chip would store in forward and read in backward: see ``cost.traffic``."""
        written = {value: buffer for buffer, value in self._graph.updates.items()}
        outputs = tuple(written.get(name, name) for name in kernels.outputs)
        again = derivable_extras(kernels.forward, len(outputs))
        extras = tuple(self._saved_symbol(plan.name, i) for i in range(len(kernels.forward.outputs) - len(outputs)))
        symbol_of = dict(zip(kernels.forward.outputs, (*outputs, *extras), strict=True))
        symbol_of |= {spec.name: name for spec, name in zip(kernels.forward.inputs, kernels.inputs, strict=True)}
        stored = (*outputs, *(name for index, name in enumerate(extras) if index not in again))
        read: dict[str, None] = {}
        for saved in kernels.saved:
            if saved.value is not None:
                read[saved.value] = None
            else:
                read.update(dict.fromkeys(symbol_of[v] for v in sorted(again.get(saved.index, ()))))
                read.update({} if saved.index in again else {extras[saved.index]: None})
        incoming = (symbol for name in kernels.tangents for symbol in self._gradients[name])
        return stored, (*read, *incoming)

    def _check_updates(self, plans: Sequence[SectionPlan], built: Sequence[SectionKernels]) -> None:
        """Check that a buffer's old value is not read after the section that computes its new value overwrites it."""
        for buffer, value in self._graph.updates.items():
            late = False
            for plan, kernels in zip(plans, reversed(built), strict=True):
                if (late and buffer in kernels.inputs) or any(saved.value == buffer for saved in kernels.saved):
                    raise UnsupportedOperator(
                        f"section {plan.name!r} needs the value of buffer {buffer!r} from before forward overwrites "
                        "it; read the buffer after the write, or keep a copy in another buffer"
                    )
                late = late or value in kernels.outputs

    def _add_section(
        self, plan: SectionPlan, kind: SectionType, kernel: KernelGraph, inputs: tuple[str, ...],
        outputs: tuple[str, ...], work: Sequence[OperatorShape], moved: tuple[Sequence[str], Sequence[str]],
    ) -> None:  # fmt: skip
        looked_up = {}
        if kind is SectionType.FWD:
            rows = looked_up_bytes(kernel, [(w.op, w.inputs, w.outputs) for w in work])
            looked_up = {inputs[position]: size for position, size in rows.items()}
        resources, cost = self._project(work, *moved, plan, looked_up, self._linked(plan, inputs))
        self._assembly.note_stages(work, plan, self._chip, self._options.tiles)
        name = plan.name if kind is SectionType.FWD else f"{plan.name}_bwd"
        self._append(
            Section(
                len(self._assembly.sections), name, kind, self._graph.name, self._keep(kernel), inputs, outputs,
                plan.operators, plan.rule, plan.heuristic, plan.why, resources, cost, dict(plan.decisions),
                *self._memory(kernel, inputs, outputs, work),
            ),
            () if self._chip_of(plan) == HOST_CHIP or plan.heuristic == HOST else (self._chip_of(plan),),
        )  # fmt: skip

    def _project(
        self, work: Sequence[OperatorShape], inputs: Sequence[str], outputs: Sequence[str], plan: SectionPlan | None,
        looked_up: Mapping[str, int] = _NOTHING, linked_bytes: int = 0,
    ) -> tuple[SectionResources, Cost]:  # fmt: skip
        symbols = self._assembly.symbols
        if plan is not None and plan.heuristic in {HOST, OUTPUT}:
            moved_in, moved_out = (sum(symbols[name].bytes for name in names) for names in (inputs, outputs))
            both = moved_in + moved_out  # the emulated time is the transfer to the host and back
            _, cost = project([], moved_in, moved_out, 0, self._chip, self._options.tiles, bytes_host=both)
            return SectionResources(0, 0, 0, 0), cost
        weights = {SymbolKind.PARAMETER, SymbolKind.BUFFER, SymbolKind.STATE}
        held = {name for name in inputs if symbols[self._parent(name)].kind in weights}
        size = {name: symbols[name].bytes for name in (*inputs, *outputs)}
        if plan is None and self._graph.chips > 1:
            size = self._places.sizes([symbols[name] for name in size], self._graph.chips, self._options.parallel)
        return project(
            [operator_work(shape.op, shape.inputs, shape.outputs) for shape in work],
            bytes_in=sum(size[name] for name in inputs if name not in held),
            bytes_out=sum(size[name] for name in outputs),
            bytes_weights=sum(looked_up.get(name, size[name]) for name in inputs if name in held),
            chip=self._chip,
            tiles=self._options.tiles,
            decisions=plan.decisions if plan is not None else None,
            peer_s=linked_bytes / link_bandwidth(),
        )

    def _linked(self, plan: SectionPlan, inputs: Sequence[str]) -> int:
        """Return the bytes that a section reads from other chips."""
        chip = self._chip_of(plan)
        remote = (name for name in inputs if self._made_on.get(name, chip) not in {chip, HOST_CHIP})
        return sum(self._assembly.symbols[name].bytes for name in remote) if chip != HOST_CHIP else 0

    def _memory(
        self, kernel: KernelGraph, inputs: Sequence[str], outputs: Sequence[str], work: Sequence[OperatorShape] = ()
    ) -> tuple[int, dict[str, str], dict[str, int]]:
        """Return a section's ``scratch_bytes``, ``shares`` and ``holds``."""
        found = kernel_memory(kernel, [shape.outputs for shape in work])
        bound = {"i": inputs, "o": outputs}
        return (
            found.scratch_bytes,
            {outputs[position]: bound[side][place] for position, (side, place) in found.shares.items()},
            {outputs[position]: size for position, size in found.holds.items()},
        )

    def _keep(self, kernel: KernelGraph) -> str:
        digest = kernel.digest()
        self._assembly.kernels.setdefault(digest, kernel)
        return digest

    def _append(self, section: Section, chips: tuple[int, ...] | None = None) -> None:
        """Add a section to the schedule. ``chips``: those that run it; None for all."""
        self._assembly.sections.append(section)
        self._places.sections.append(tuple(range(self._graph.chips)) if chips is None else chips)
        self._made_on.update(dict.fromkeys(section.outputs, chips[0] if chips else HOST_CHIP))
        self._scheduled.append(section.id)

    def _add_chip_gradient(self, gradient: ChipGradient) -> None:
        value, symbol = gradient.value, gradient_name(gradient.value.name)
        made = build_chip_gradient(value, gradient.parts)
        self._symbol(symbol, SymbolKind.GRADIENT, value.dtype, value.shape)
        cost = Cost(0, 0, 0, 0, 0, 0.0)  # rows stay on their chips
        if gradient.linked_bytes:
            peer_s, size = gradient.linked_bytes / link_bandwidth(), value.bytes
            _, cost = project([], size, size, 0, self._chip, self._options.tiles, peer_s=peer_s)
        section = Section(
            len(self._assembly.sections), f"{gradient.heuristic}_{value.name}", SectionType.BCKWD, self._graph.name,
            self._keep(made.kernel), made.inputs, made.outputs, (), None, gradient.heuristic, gradient.why,
            SectionResources(0, 0, 0, 0), cost, {}, *self._memory(made.kernel, made.inputs, made.outputs),
        )  # fmt: skip
        self._append(section, gradient.chips)
        for rows, _ in gradient.parts:
            self._gradients.pop(rows.name)
        self._gradients[value.name] = [symbol]
        self._follow(symbol, value.name)

    def _follow(self, symbol: str, parameter: str) -> None:
        if self._graph.chips > 1:
            self._places.follows[symbol] = parameter

    def _add_optimizers(self, groups: tuple[OptimizerGroup, ...]) -> None:
        parameters = {value.name: value for value in self._graph.of_kind(ValueKind.PARAMETER)}
        for group in groups:
            for scalar, number in group.scalars.items():
                self._assembly.hyperparameters[f"{group.label}.{scalar}"] = number
            for name in group.parameters:
                for state, symbol in zip(STATES[group.kind], group.state_names(name), strict=True):
                    shape = group.state_shape(state, parameters[name])
                    self._symbol(symbol, SymbolKind.STATE, parameters[name].dtype, shape)
                    self._follow(symbol, name)
        clipping = [group for group in groups if group.max_grad_norm is not None]
        for group in clipping:
            self._assembly.hyperparameters[f"{group.label}.max_grad_norm"] = group.max_grad_norm or 0.0
        for norm in dict.fromkeys(group.max_grad_norm for group in clipping):
            together = [group for group in clipping if group.max_grad_norm == norm]
            clipped = build_gradnorm(together, parameters, self._as_tuples())
            for symbol in clipped.outputs:
                parameter = parameters[symbol.removesuffix("__grad_clipped")]
                self._symbol(symbol, SymbolKind.GRADIENT, parameter.dtype, parameter.shape)
                self._follow(symbol, parameter.name)
                self._gradients[parameter.name] = [symbol]
            self._add_optimizer_section(together[0], SectionType.GRADNORM, clipped)
        for group in groups:
            kernel = build_optimizer(group, parameters, self._as_tuples(), self._options.is_exact, self._narrow)
            self._add_optimizer_section(group, SectionType.OPT, kernel)

    def _add_accumulation(self, groups: tuple[OptimizerGroup, ...]) -> OptimizerKernel:
        """Add the section that sums gradients over backwards until opt runs; return the kernel that ends a sum.

        Source: SDK reference 6.2; ours: the next backward begins a new sum, so the gradients of a step stay readable
        after it.
        """
        parameters = {value.name: value for value in self._graph.of_kind(ValueKind.PARAMETER)}
        flag = Value(f"{self._graph.name}__accumulating", ValueKind.BUFFER, "float32", ())
        adding, ending = build_accumulation(groups, parameters, self._as_tuples(), flag)
        self._symbol(flag.name, SymbolKind.STATE, flag.dtype, flag.shape)
        for group in groups:
            for name in group.parameters:
                if self._gradients.get(name):
                    symbol = accumulated_name(name)
                    self._symbol(symbol, SymbolKind.STATE, parameters[name].dtype, parameters[name].shape)
                    self._follow(symbol, name)
                    self._gradients[name] = [symbol]
        self._add_plain_section("accumulate", SectionType.BCKWD, adding, "adds gradients up until opt runs")
        return ending

    def _add_plain_section(self, name: str, kind: SectionType, made: OptimizerKernel, why: str) -> None:
        """Add a section of one of our own operators."""
        resources, cost = self._project([], made.inputs, made.outputs, None)
        self._append(
            Section(
                len(self._assembly.sections), name, kind, self._graph.name, self._keep(made.kernel), made.inputs,
                made.outputs, (), None, "default", why, resources, cost, {},
                *self._memory(made.kernel, made.inputs, made.outputs),
            )
        )  # fmt: skip

    def _add_optimizer_section(self, group: OptimizerGroup, kind: SectionType, made: OptimizerKernel) -> None:
        symbols = self._assembly.symbols
        shapes = tuple((symbols[name].shape, symbols[name].dtype) for name in made.inputs)
        updated = tuple(n for n in made.inputs if symbols[n].kind in {SymbolKind.PARAMETER, SymbolKind.STATE})
        op = "rdukit.clip_grad_norm" if kind is SectionType.GRADNORM else f"rdukit.{group.kind}"
        work = [OperatorShape(op, shapes, tuple((symbols[n].shape, symbols[n].dtype) for n in updated))]
        resources, cost = self._project(work, made.inputs, made.outputs or updated, None)
        self._assembly.note_stages(work, None, self._chip, self._options.tiles)
        self._append(
            Section(
                len(self._assembly.sections), f"{kind}_{group.label}", kind, self._graph.name, self._keep(made.kernel),
                made.inputs, made.outputs, (), None, "default", f"the {kind} section of optimizer {group.label}",
                resources, cost, {}, *self._memory(made.kernel, made.inputs, made.outputs),
            )
        )  # fmt: skip

    def _add_reduce(
        self, groups: tuple[OptimizerGroup, ...], gradients: dict[str, tuple[str, ...]], position: int
    ) -> None:
        """Add the section that averages gradients over ranks: numbered last, run at ``position``, before gradnorm and
        opt.

        Source: the vendor's PEFs list it after opt (SDK reference 6.2); it must run before opt to have an effect.
        """
        parameters = {value.name: value for value in self._graph.of_kind(ValueKind.PARAMETER)}
        made = build_reduce(groups, parameters, gradients)
        if not made.inputs:
            return
        size = sum(self._assembly.symbols[name].bytes for name in made.inputs)
        ranks = max(self._options.replicas, 2)
        machine = default_machine(self._chip, min(self._options.tiles, self._chip.tiles), ranks)
        plan = plan_collective(Op.ALLREDUCE, machine, ranks, max(size, 1))
        resources, cost = project([], size, size, 0, self._chip, self._options.tiles, peer_s=plan.terms.seconds)
        section = Section(
            len(self._assembly.sections), "reduce", SectionType.REDUCE, self._graph.name, self._keep(made.kernel),
            made.inputs, made.outputs, (), None, "default",
            f"averages gradients over the ranks; the time is for {plan.chosen} among {ranks} ranks on {machine.name}",
            resources, cost,
            {}, *self._memory(made.kernel, made.inputs, made.outputs),
        )  # fmt: skip
        self._append(section)
        self._scheduled.insert(position, self._scheduled.pop())

    def _as_tuples(self) -> dict[str, tuple[str, ...]]:
        return {name: tuple(symbols) for name, symbols in self._gradients.items()}
