"""Multigraph: several traces joined into one dataflow graph, and the named graphs that are cut out of it.

Values are joined by name: a result of one trace and an input of another with the same name are one value. Graphs may
share device memory by regions, and a program may rewire a graph through ``tensor.dsts``. Source: SDK reference 5 and
12.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import torch
from torch import nn

from rdukit.errors import CompileError, InvalidArgument, PefMismatch, TraceError
from rdukit.pef.kernel import rename_references
from rdukit.pef.model import Pef
from rdukit_compiler import ModelGraph, Operator, Value, ValueKind, convert_output
from sambaflow.samba.graph import FwdGraph
from sambaflow.samba.sambatensor import SambaTensor
from sambaflow.sessions.modes import Modes, Watched, watching_modes
from sambaflow.tracing.tracer import TracedModel, trace_model

#: Integer dtypes of an output and its region: type promotion turns int32 into int64, and a wider dtype holds every
#: value.
_CONVERTED: Final = frozenset(
    {("int64", "int32"), ("uint8", "int16"), ("int8", "int16")}
    | {(narrow, wide) for narrow in ("int8", "uint8", "int16") for wide in ("int32", "int64")}
    | {("int32", "int64")}
)
#: The device's dtype of a region decides between them: see ``join_regions``.
_FLOATS: Final = frozenset({"bfloat16", "float32"})


@dataclass(slots=True)
class Consumer:
    """An operator that reads traced tensors.

    Programs may change ``inputs`` in place to other traced tensors of the same shape and dtype; graphs that are cut
    later use them.
    """

    name: str
    op_type: str
    inputs: list[SambaTensor]
    #: Names of ``inputs`` when the operator was traced.
    before: tuple[str, ...] = field(repr=False)


class MultiGraph:
    """Traces of a program for multigraph, and the graphs that it has registered.

    All names depend only on the order of calls, so a run with the same calls gets the compile's names.
    """

    def __init__(self) -> None:
        self.graphs: dict[str, FwdGraph] = {}
        #: Parameters, buffers and constants of all traces by symbol name.
        self.state: dict[str, torch.Tensor] = {}
        self.inputs: dict[str, SambaTensor] = {}
        self.outputs: dict[str, SambaTensor] = {}
        self._values: dict[str, Value] = {}
        self._producers: dict[str, Operator] = {}
        self._order: list[Operator] = []
        #: Buffer → the value that a trace leaves in it, per trace.
        self._updates: list[Mapping[str, str]] = []
        #: Buffer → dropout rate, of all traces.
        self._rates: dict[str, float] = {}
        #: Name → operator that the program has read through ``tensor.dsts``.
        self._consumers: dict[str, Consumer] = {}
        #: Tensor → the consumers that the program has assigned to its ``dsts``.
        self._declared: dict[str, list[Consumer]] = {}
        self._models: dict[str, nn.Module] = {}
        self._traces: set[str] = set()
        #: Traces, with the data to check whether their models' modes have changed.
        self.traced: list[tuple[nn.Module, Any, TracedModel, Watched]] = []

    # -- tracing -----------------------------------------------------------------------------------------------------

    def trace(self, model: nn.Module, inputs: Any, trace_prefix: str = "") -> TracedModel:
        """Trace ``model`` and join it with earlier traces.

        Raises:
            TraceError: a name stands for two different tensors; and what ``trace_model`` raises.
        """
        self._name_model(model)
        name = str(getattr(model, "name", "") or type(model).__name__.lower())
        if trace_prefix:
            name = f"{trace_prefix.strip('_')}__{name}"
        name = _free_name(name, self._traces)
        with watching_modes(model) as watched:
            traced = trace_model(model, inputs, name, exposed=self._values.keys())
        self._check_join(traced)
        self.traced.append((model, inputs, traced, watched()))
        self._traces.add(name)
        self.state.update(traced.state)
        self.inputs.update({n: t for n, t in traced.inputs.items() if n not in self.outputs})
        self.outputs.update({tensor.sn_name: tensor for tensor in traced.outputs})
        for value in traced.graph.values.values():
            known = self._values.get(value.name)
            if known is None or known.kind is not ValueKind.OPERATOR:
                self._values[value.name] = value
        self._producers.update(traced.graph.producers())
        self._order.extend(traced.graph.operators)
        self._rates.update(traced.graph.rates)
        if traced.graph.updates:
            self._updates.append(traced.graph.updates)
        return traced

    def _name_model(self, model: nn.Module) -> None:
        """Give a second model of one class distinct names: ``linear``, ``linear_1``; tied parameters keep theirs.

        Source: ours; the vendor asks for ``parent_module_prefix``.
        """
        name = str(getattr(model, "name", ""))
        if not name or self._models.get(name) is model:
            return
        old = str(getattr(model, "sn_prefix", f"{name}__"))
        if name in self._models:
            name = _free_name(name, self._models)
            model.name = name  # type: ignore[assignment]
            model.sn_prefix = f"{name}__"  # type: ignore[assignment]
        self._models[name] = model
        for parameter in model.parameters():
            symbol = str(getattr(parameter, "sn_name", ""))
            if self.state.get(symbol, parameter) is not parameter:
                wanted = f"{name}__{symbol.removeprefix(old)}" if symbol.startswith(old) else symbol
                parameter.sn_name = _free_name(wanted, self.state)  # type: ignore[attr-defined]

    def _check_join(self, traced: TracedModel) -> None:
        for symbol, tensor in traced.state.items():
            known = self.state.get(symbol)
            if known is not None and known is not tensor:
                raise TraceError(
                    f"two tensors are called {symbol!r}; convert the models with different prefixes: "
                    "samba.from_torch_model_(model, parent_module_prefix='…')"
                )
        for value in traced.graph.values.values():
            known_value = self._values.get(value.name)
            if known_value is None:
                continue
            kinds = {known_value.kind, value.kind}
            if kinds == {ValueKind.OPERATOR} or (len(kinds) == 2 and kinds != {ValueKind.OPERATOR, ValueKind.INPUT}):
                raise TraceError(f"two tensors are called {value.name!r}; trace with different trace_prefix")
            if (known_value.shape, known_value.dtype) != (value.shape, value.dtype):
                raise TraceError(
                    f"tensor {value.name!r} is {_describe(known_value)} in one trace and {_describe(value)} in "
                    "another; give different tensors different names"
                )

    def consumers(self, name: str) -> list[Consumer]:
        """Return the operators that read a traced tensor, in the order of the trace; empty for an untraced tensor.

        A list that the program assigned is returned unchanged.
        """
        if name in self._declared:
            return list(self._declared[name])
        return [
            self._consumers.setdefault(operator.name, consumer_of(operator, self._handle_of))
            for operator in self._order
            if name in operator.inputs
        ]

    def declare_consumers(self, name: str, consumers: Iterable[Any]) -> None:
        """Store the list that a program assigns to a tensor's ``dsts``; cutting a graph checks it.

        An assignment alone does not change an edge: the program must also change ``inputs`` of the consumers.

        Raises:
            InvalidArgument: an item is not from another tensor's ``dsts``.
        """
        declared = list(consumers)
        for consumer in declared:
            if not isinstance(consumer, Consumer):
                raise InvalidArgument(
                    f"dsts of {name!r} holds a {type(consumer).__name__}; expected operators of other tensors' dsts"
                )
        self._declared[name] = declared

    def _check_declared(self) -> None:
        """Check that assigned ``dsts`` are the operators that read the tensor, in any order.

        Raises:
            CompileError: a reader is missing, or an operator does not read the tensor.
        """
        for name, declared in self._declared.items():
            readers = {operator.name for operator in self._order if name in operator.inputs}
            listed = {consumer.name for consumer in declared}
            if idle := sorted(listed - readers):
                raise CompileError(
                    f"dsts of {name!r} holds operator {idle[0]!r}, which does not read it; also put the tensor into "
                    "the operator's inputs"
                )
            if lost := sorted(readers - listed):
                raise CompileError(
                    f"dsts of {name!r} lacks operator {lost[0]!r}, which reads it; give the operator another input, or "
                    "keep it in dsts"
                )

    def _handle_of(self, name: str) -> SambaTensor:
        for known in (self.outputs, self.inputs):
            if name in known:
                return known[name]
        value = self._values[name]
        return SambaTensor(shape=value.shape, dtype=getattr(torch, value.dtype), name=name)

    def _follow_consumers(self) -> None:
        """Apply the program's changes of the inputs of ``tensor.dsts``."""
        self._order = rewired(self._order, self._consumers.values(), self._values)
        self._producers.update({output: o for o in self._order for output in o.outputs})
        for consumer in self._consumers.values():
            consumer.before = tuple(tensor.sn_name for tensor in consumer.inputs)
        self._check_declared()

    # -- cutting -----------------------------------------------------------------------------------------------------

    def add(self, graph: FwdGraph) -> None:
        """Register a graph.

        Raises:
            InvalidArgument: it is not a graph, or its name is taken.
        """
        if not isinstance(graph, FwdGraph):
            raise InvalidArgument(f"add_graph got {type(graph).__name__}; expected a FwdGraph")
        if graph.name in self.graphs:
            raise InvalidArgument(f"graph {graph.name!r} was already added; names of graphs must differ")
        self.graphs[graph.name] = graph

    def cut_all(self) -> list[ModelGraph]:
        """Return every registered graph in the compiler's form, with checked regions.

        Raises:
            InvalidArgument: no graph was added. CompileError: a graph cannot be cut, or regions clash.
        """
        computing = [graph for graph in self.graphs.values() if graph.stop]
        if not computing:
            raise InvalidArgument("no graph was added; call samba.session.add_graph(FwdGraph(start, stop, name)) first")
        self._follow_consumers()
        cut = [self.cut(graph) for graph in computing]
        regions = self.regions()
        return fit_to_regions(cut, regions)

    def cut(self, graph: FwdGraph) -> ModelGraph:
        """Return the operators that ``graph.stop`` needs, cut at ``graph.start``.

        Raises:
            CompileError: start or stop was not traced, or stop depends on an input that is not among start.
        """
        start = {tensor.sn_name for tensor in graph.start}
        stop = tuple(tensor.sn_name for tensor in graph.stop)
        for name in (*start, *stop):
            if name not in self._values:
                raise CompileError(
                    f"graph {graph.name!r}: tensor {name!r} was not traced; traced outputs: {_some(self.outputs)}"
                )
        for name in stop:
            if name in start or name not in self._producers:
                raise CompileError(f"graph {graph.name!r}: no operator between start and stop computes stop {name!r}")
        needed, missing = self._needed(stop, start)
        if missing:
            raise CompileError(
                f"graph {graph.name!r}: {missing[0][1]!r} depends on input {missing[0][0]!r}, which is not among start "
                f"({', '.join(sorted(start)) or 'none'}); add it to start"
            )
        updates = self._updates_within(needed, start)
        names = {operator.name for operator in needed}
        operators = tuple(operator for operator in self._order if operator.name in names)
        values = {t.sn_name: self._as_input(t.sn_name) for t in graph.start}
        for operator in operators:
            for name in (*operator.inputs, *operator.outputs):
                values.setdefault(name, self._values[name])
        for buffer in updates:
            values.setdefault(buffer, self._values[buffer])
        rates = {name: rate for name, rate in self._rates.items() if name in values}
        return ModelGraph(graph.name, values, operators, stop, updates, rates)

    def _as_input(self, name: str) -> Value:
        value = self._values[name]
        if value.kind in {ValueKind.PARAMETER, ValueKind.BUFFER}:
            return value
        return Value(name, ValueKind.INPUT, value.dtype, value.shape)

    def _needed(self, stop: Iterable[str], start: set[str]) -> tuple[list[Operator], list[tuple[str, str]]]:
        """Return operators that compute ``stop`` from ``start``, and (input, stop) pairs of missing inputs."""
        found: dict[str, Operator] = {}
        missing: list[tuple[str, str]] = []
        seen = set(start)
        for target in stop:
            todo = [target]
            while todo:
                name = todo.pop()
                if name in seen:
                    continue
                seen.add(name)
                operator = self._producers.get(name)
                if operator is not None:
                    found.setdefault(operator.name, operator)
                    todo.extend(reversed(operator.inputs))
                elif self._values[name].kind is ValueKind.INPUT:
                    missing.append((name, target))
        return list(found.values()), missing

    def _updates_within(self, needed: list[Operator], start: set[str]) -> dict[str, str]:
        """Return the buffers that a graph changes, each with its new value.

        They are buffers of the traces to which the graph's operators belong, if ``start`` suffices to compute the new
        values. The operators that compute these are added to ``needed``.
        """
        kept: dict[str, str] = {}
        buffers = {name for operator in needed for name in operator.inputs}
        for updates in self._updates:
            for buffer, value in updates.items():
                more, missing = self._needed([value], start)
                if not missing and (buffer in buffers or any(operator in needed for operator in more)):
                    needed.extend(more)
                    kept[buffer] = value
        return kept

    # -- regions -----------------------------------------------------------------------------------------------------

    def regions(self) -> dict[str, str]:
        """Return tensor name → device memory region that the program set.

        Raises:
            CompileError: the program gave one tensor two regions.
        """
        found: dict[str, str] = {}
        ends = [tensor for graph in self.graphs.values() for tensor in (*graph.start, *graph.stop)]
        for tensor in (*self.inputs.values(), *self.outputs.values(), *ends, *self.state.values()):
            name, region = str(getattr(tensor, "sn_name", "")), str(getattr(tensor, "sn_region_name", ""))
            if region != name and found.setdefault(name, region) != region:
                raise CompileError(f"tensor {name!r} has two regions, {found[name]!r} and {region!r}; set one")
        return found

    # -- a compiled PEF ----------------------------------------------------------------------------------------------

    def check_pef(self, pef: Pef, path: str, cut: Sequence[ModelGraph]) -> None:
        """Check that ``pef`` was compiled from the graphs in ``cut`` and from the program's regions.

        Raises:
            PefMismatch: it was compiled from others.
        """
        from rdukit_compiler import check_signature, graph_signature

        compiled, ours = list(pef.signature), [graph.name for graph in cut]
        if sorted(compiled) != sorted(ours):
            raise PefMismatch(
                f"{path} was compiled from graphs {', '.join(compiled)}, but this program added {', '.join(ours)}; "
                "add the same graphs, or compile again"
            )
        for graph in cut:
            check_signature(pef.signature[graph.name], graph_signature(graph, ()), path, False, graph)
        self._check_regions(pef, path)

    def modes_by_graph(self, pef: Pef, path: str) -> dict[str, list[Modes]]:
        """Map graphs of ``pef`` to the modes of the models in them, where forward reads the mode."""
        found: dict[str, list[Modes]] = {}
        for model, inputs, traced, watched in self.traced:
            modes = Modes(model, inputs, traced, watched, pef, path, lambda _: None)
            names = {operator.name for operator in traced.graph.operators}
            for graph in pef.graphs.values() if watched else ():
                if not names.isdisjoint(name for number in graph.schedule for name in pef.sections[number].operators):
                    found.setdefault(graph.name, []).append(modes)
        return found

    def _check_regions(self, pef: Pef, path: str) -> None:
        """Check that the program's regions join the same tensors as the PEF's."""
        regions = self.regions()
        for name, symbol in pef.symbols.items():
            if name in self._values and symbol.region != regions.get(name, name):
                raise PefMismatch(
                    f"tensor {name!r} has region {regions.get(name, name)!r}, but {path} was compiled with "
                    f"{symbol.region!r}; set the same sn_region_name before compile and run"
                )


def _free_name(name: str, taken: Iterable[str]) -> str:
    """Return ``name``, or ``name_1``, ``name_2`` …: the first that is not taken."""
    known, free, count = set(taken), name, 0
    while free in known:
        count += 1
        free = f"{name}_{count}"
    return free


def _describe(value: Value) -> str:
    return f"{value.dtype}{list(value.shape)}"


def _some(names: Iterable[str]) -> str:
    listed = sorted(names)
    return ", ".join(listed[:5]) + (f", and {len(listed) - 5} more" if len(listed) > 5 else "") or "none"


def fit_to_regions(graphs: Iterable[ModelGraph], regions: Mapping[str, str]) -> list[ModelGraph]:
    """Return the graphs, with integer outputs converted to the integer dtype of the region that they are written to.

    torch's type promotion turns an int32 and a default constant into int64; a region has one dtype, that of the first
    input in it. A region may be bfloat16 on the host in one graph and float32 in another: the device holds it once, and
    each tensor is converted to its own dtype when the host reads it.

    Raises:
        CompileError: two inputs, or two outputs, of a graph share a region, or tensors of one region have other
            different dtypes.
    """
    cut = list(graphs)
    for graph in cut:
        _check_one_per_region("inputs", graph, [v.name for v in graph.of_kind(ValueKind.INPUT)], regions)
        _check_one_per_region("outputs", graph, graph.outputs, regions)
    held: dict[str, Value] = {}
    for value in (value for graph in cut for value in graph.of_kind(ValueKind.INPUT)):
        held.setdefault(regions.get(value.name, value.name), value)
    for value in (graph.values[name] for graph in cut for name in graph.outputs):
        held.setdefault(regions.get(value.name, value.name), value)
    fitted = [_with_integers_of(graph, regions, held) for graph in cut]
    for graph in fitted:
        for name in (*(v.name for v in graph.of_kind(ValueKind.INPUT)), *graph.outputs):
            region = regions.get(name, name)
            first, dtype = held[region], graph.values[name].dtype
            if first.dtype != dtype and not {first.dtype, dtype} <= _FLOATS:
                raise CompileError(
                    f"{first.name!r} and {name!r} share region {region!r}, but are {first.dtype} and {dtype}; tensors "
                    "of one region must have one dtype"
                )
    return fitted


def _check_one_per_region(what: str, graph: ModelGraph, names: Iterable[str], regions: Mapping[str, str]) -> None:
    owner: dict[str, str] = {}
    for name in names:
        region = regions.get(name, name)
        if owner.setdefault(region, name) != name:
            raise CompileError(
                f"graph {graph.name!r}: {what} {owner[region]!r} and {name!r} share region {region!r}; only an input "
                "and an output of one graph, or tensors of different graphs, may share one"
            )


def _with_integers_of(graph: ModelGraph, regions: Mapping[str, str], held: Mapping[str, Value]) -> ModelGraph:
    for name in graph.outputs:
        value, wanted = graph.values[name], held[regions.get(name, name)].dtype
        if value.dtype != wanted and (value.dtype, wanted) in _CONVERTED:
            graph = convert_output(graph, name, wanted)
    return graph


def consumer_of(operator: Operator, tensor_of: Callable[[str], SambaTensor]) -> Consumer:
    """Return the program's view of an operator; ``tensor_of`` gives the handle of a value."""
    return Consumer(operator.name, operator.op_type, [tensor_of(n) for n in operator.inputs], operator.inputs)


def rewired(
    operators: Iterable[Operator], consumers: Iterable[Consumer], values: Mapping[str, Value]
) -> list[Operator]:
    """Return ``operators`` with the inputs that the program has since set in their consumers.

    Raises:
        CompileError: an input was added or removed, was not traced, or has another shape or dtype.
    """
    changes: dict[str, dict[str, str]] = {}
    for consumer in consumers:
        after = [tensor.sn_name for tensor in consumer.inputs]
        if len(after) != len(consumer.before):
            raise CompileError(
                f"operator {consumer.name!r} reads {len(consumer.before)} tensors; inputs of dsts may be replaced, not "
                "added or removed"
            )
        for old, new in zip(consumer.before, after, strict=True):
            if old == new:
                continue
            ours, theirs = values[old], values.get(new)
            if theirs is None or (ours.shape, ours.dtype) != (theirs.shape, theirs.dtype):
                found = "was not traced" if theirs is None else f"is {theirs.dtype}{list(theirs.shape)}"
                raise CompileError(
                    f"operator {consumer.name!r}: {new!r} {found}; expected in place of {old!r}: a traced "
                    f"tensor that is {ours.dtype}{list(ours.shape)}"
                )
            changes.setdefault(consumer.name, {})[old] = new
    return [_with_inputs(o, changes[o.name]) if o.name in changes else o for o in operators]


def _with_inputs(operator: Operator, new: Mapping[str, str]) -> Operator:
    return replace(
        operator,
        args=tuple(rename_references(argument, new) for argument in operator.args),
        kwargs={key: rename_references(argument, new) for key, argument in operator.kwargs.items()},
    )
