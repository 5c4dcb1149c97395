"""Compute no rows that nobody reads: ``head(norm(x)[:, -1])`` reads one row of what the last layer makes.

Of a language model's last layer all but keys and values is then computed for one token, of a vision transformer's for
the class token. Rows of a product, a norm or an attention do not depend on each other, so that what is read stays as
it is; the order of sums may change with the kernel that fewer rows take.

Source: ours; ONNX Runtime knows it as moving a gather upstream, llama.cpp has it in the models it writes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from rdukit.pef.kernel import Argument, Ref, Special
from rdukit_compiler.ir import ModelGraph, Operator, Value, ValueKind
from rdukit_compiler.passes.needed_rows import (
    Arguments,
    Part,
    Rows,
    SeenKeys,
    needed_rows,
    selected_rows,
    substituted,
    with_rows,
)

#: What is worth it: a kernel skips rows of all others by itself.
_PRODUCTS: Final = frozenset({"linear", "matmul", "mm", "bmm", "scaled_dot_product_attention"})


@dataclass(frozen=True, slots=True)
class _Plan:
    """An operator that reads parts of its inputs, and the rows that it makes of its outputs: None for all of them."""

    args: Arguments
    rows: Rows | None


def skip_unread_rows(graph: ModelGraph) -> ModelGraph:
    """The graph, where values of which a half of the rows or less is read have no others.

    Inputs, outputs and what buffers are updated to stay whole.
    """
    plans = _find_plans(graph)
    if not any(operator.op_type in _PRODUCTS and operator.name in plans for operator in graph.operators):
        return graph
    writer = _Writer(graph.values)
    for operator in graph.operators:
        plan = plans.get(operator.name)
        if plan is None or (plan.rows is None and operator.inputs[0] not in writer.partial):
            writer.operators.append(operator)
        else:
            writer.write(operator, plan)
    return replace(graph, operators=tuple(writer.operators), values=writer.values)


def _find_plans(graph: ModelGraph) -> dict[str, _Plan]:
    """Operator name → its plan, of those that need not make, or not read, all rows."""
    plans: dict[str, _Plan] = {}
    #: Value → the rows that its readers want, all the same, or None for all rows.
    wanted: dict[str, Rows | None] = dict.fromkeys((*graph.outputs, *graph.updates.values()))

    def note(read: Ref | Part | SeenKeys) -> None:
        if not isinstance(read, SeenKeys):
            rows = read.rows if isinstance(read, Part) else None
            wanted[read.name] = rows if wanted.get(read.name, rows) == rows else None

    for operator in reversed(graph.operators):
        plan = _plan(graph, operator, {wanted[name] for name in operator.outputs if name in wanted})
        if plan is not None:
            plans[operator.name] = plan
        substituted([*(operator.args if plan is None else plan.args), *operator.kwargs.values()], note)
    return plans


def _plan(graph: ModelGraph, operator: Operator, wanted: set[Rows | None]) -> _Plan | None:
    if len(wanted) != 1:
        return None
    (rows,) = wanted
    if rows is not None and (args := needed_rows(operator, rows, graph.values)) is not None:
        return _Plan(args, rows)
    selected = selected_rows(operator, graph.values)
    if selected is None:
        return None
    if selected.index and graph.values[selected.index].kind is ValueKind.OPERATOR:
        return None  # perhaps numbered too late to be selected earlier
    source = operator.inputs[0]
    if selected.count * 2 > graph.values[source].shape[selected.axis]:
        return None
    part = Part(source, selected)
    return _Plan((part, selected.axis, 0) if operator.op_type == "select" else (part,), None)


class _Writer:
    """Writes operators that read parts: those of whole values are cut out first, once each."""

    def __init__(self, values: Mapping[str, Value]) -> None:
        self.values = dict(values)
        self.operators: list[Operator] = []
        #: Values of which only some rows are made.
        self.partial: set[str] = set()
        self._cut: dict[Part | SeenKeys, Ref] = {}

    def write(self, operator: Operator, plan: _Plan) -> None:
        args = tuple(substituted(argument, lambda read: self._value(operator, read)) for argument in plan.args)
        if plan.rows is not None:
            self.partial.update(operator.outputs)
            for name in operator.outputs:
                value = self.values[name]
                self.values[name] = replace(value, shape=with_rows(value.shape, plan.rows))
        elif operator.op_type != "select":
            operator = replace(operator, op="aten.alias.default", op_type="alias")
        self.operators.append(replace(operator, args=args))

    def _value(self, reader: Operator, read: Ref | Part | SeenKeys) -> Ref:
        if isinstance(read, Ref) or (isinstance(read, Part) and read.name in self.partial):
            return Ref(read.name)
        if read not in self._cut:
            self._cut[read] = self._mask(reader, read) if isinstance(read, SeenKeys) else self._part(reader, read)
        return self._cut[read]

    def _part(self, reader: Operator, part: Part) -> Ref:
        rows, whole = part.rows, self.values[part.name]
        made = (whole.dtype, with_rows(whole.shape, rows), whole.requires_grad)
        if rows.index:
            return self._emit(reader, made, "aten.index_select.default", Ref(part.name), rows.axis, Ref(rows.index))
        end = rows.first + rows.count
        return self._emit(reader, made, "aten.slice.Tensor", Ref(part.name), rows.axis, rows.first, end)

    def _mask(self, reader: Operator, seen: SeenKeys) -> Ref:
        index = self.values[seen.index]
        cpu = Special("device", "cpu")
        keys = self._emit(reader, ("int64", (seen.keys,), False), "aten.arange.default", seen.keys, device=cpu)
        column = self._emit(
            reader, (index.dtype, (*index.shape, 1), False), "aten.unsqueeze.default", Ref(seen.index), 1
        )
        return self._emit(reader, ("bool", (*index.shape, seen.keys), False), "aten.le.Tensor", keys, column)

    def _emit(
        self, reader: Operator, made: tuple[str, tuple[int, ...], bool], op: str, *args: Argument, **kwargs: Argument
    ) -> Ref:  # fmt: skip
        """Add an operator before ``reader``; ``made``: dtype, shape and ``requires_grad`` of its value."""
        name = f"{reader.name}__rows_{len(self.operators)}"
        value = Value(f"{name}__outputs__0", ValueKind.OPERATOR, *made)
        self.values[value.name] = value
        self.operators.append(Operator(name, op, op.split(".")[1], args, kwargs, (value.name,), reader.module))
        return Ref(value.name)
