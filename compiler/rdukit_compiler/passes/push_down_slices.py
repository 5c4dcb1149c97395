"""Slice pushdown: rows that nobody reads are not computed. ``head(norm(x)[:, -1])`` reads one row of the last layer.

Of a language model's last layer all but keys and values is then computed for one token, of a vision transformer's for
the class token. Rows of a product, a norm or an attention do not depend on each other, so the values that are read stay
as they are; the order of sums may change with the kernel that fewer rows take. A row is what lies at one position of an
axis, whichever axis it is. ``needed_rows`` has a rule for each operator.

Source: ours; ONNX Runtime knows it as moving a gather upstream, llama.cpp has it in the models it writes.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import torch

from rdukit.errors import UnsupportedOperator
from rdukit.pef.kernel import Argument, Ref, Special, packed_stride, parse_operator, references
from rdukit.pef.model import Dtype
from rdukit_compiler.ir import ModelGraph, Operator, Value, ValueKind
from rdukit_compiler.operators.naming import callable_of, decode

#: Arguments in which a ``ValueSlice`` or ``SeenKeys`` may stand for a value.
Arguments = Sequence[Any]
Values = Mapping[str, Value]
#: Operators that give each number of their first argument as it is, elsewhere: a view where the layout allows one.
_SHOWING: Final = frozenset(
    "view reshape _unsafe_view flatten unflatten unsqueeze squeeze transpose t permute expand select slice chunk split "
    "split_with_sizes unbind alias detach".split()
)
#: Of these, those that are given the sizes of what they make.
_GIVEN_SIZES: Final = frozenset({"view", "reshape", "_unsafe_view", "expand"})
#: Operators on each element by itself that torch does not mark as such.
_ELEMENTWISE: Final = frozenset({"to", "contiguous", "_to_copy"})
#: What is worth it: a kernel skips rows of all others by itself.
_PRODUCTS: Final = frozenset({"linear", "matmul", "mm", "bmm", "scaled_dot_product_attention"})


@dataclass(frozen=True, slots=True)
class RowSlice:
    """``count`` rows along ``axis``: from ``first`` on, or those that the value called ``index`` [count] numbers."""

    axis: int
    count: int
    first: int = 0
    index: str = ""


@dataclass(frozen=True, slots=True)
class ValueSlice:
    """Stands for some rows of a value among an operator's arguments."""

    name: str
    rows: RowSlice


@dataclass(frozen=True, slots=True)
class SeenKeys:
    """Stands for the causal mask of the queries that the value ``index`` [T] numbers: bool [T, keys]."""

    index: str
    keys: int


def selected_rows(operator: Operator, values: Values) -> RowSlice | None:
    """Return the rows that ``select``, ``slice`` or ``index_select`` reads of its first argument; None for others."""
    if operator.op not in {"aten.select.int", "aten.slice.Tensor", "aten.index_select.default"}:
        return None
    source, axis, *rest = (*operator.args, 0)[: max(2, len(operator.args))]  # slice's axis is 0 unless given
    if operator.kwargs or not isinstance(source, Ref) or not isinstance(axis, int):
        return None
    shape = values[source.name].shape
    if not shape:
        return None
    axis %= len(shape)
    match operator.op_type, rest:
        case "select", [int(first)]:
            return RowSlice(axis, 1, first % shape[axis])
        case "index_select", [Ref(index)] if len(values[index].shape) == 1:
            return RowSlice(axis, values[operator.outputs[0]].shape[axis], 0, index)
        case "slice", [] | [None | int(), *_] if rest[2:] in ([], [1]):
            begin = next(iter(rest), None)
            return RowSlice(axis, values[operator.outputs[0]].shape[axis], slice(begin, None).indices(shape[axis])[0])
    return None


def substituted(argument: Any, value_of: Callable[[Ref | ValueSlice | SeenKeys], Any]) -> Any:
    """Replace each value in ``argument``, and each stand-in for one, by ``value_of`` it."""
    match argument:
        case Ref() | ValueSlice() | SeenKeys():
            return value_of(argument)
        case list():
            return [substituted(item, value_of) for item in argument]
        case _:
            return argument


def needed_rows(operator: Operator, rows: RowSlice, values: Values) -> Arguments | None:
    """Return the arguments with which ``operator`` makes only these rows of each of its outputs; None if no rule is
    known.
    """
    if references(list(operator.kwargs.values())):
        return None
    rule = _RULES.get(operator.op_type)
    if rule is None and _is_elementwise(operator):
        rule = _each_element
    args = rule(operator, rows, values) if rule is not None else None
    return args if args is not None and _makes(operator, args, rows, values) else None


def _is_elementwise(operator: Operator) -> bool:
    if operator.op == "aten.dropout.default":
        return operator.args[2] is False
    try:
        tags = callable_of(operator.op).tags  # type: ignore[attr-defined]
    except (UnsupportedOperator, AttributeError):
        return False
    is_marked = torch.Tag.pointwise in tags or operator.op_type in _ELEMENTWISE
    return is_marked and torch.Tag.nondeterministic_seeded not in tags


def _each_element(operator: Operator, rows: RowSlice, values: Values) -> Arguments:
    """Slice every operand; axes are counted from the last one, and may be repeated."""
    width = len(values[operator.outputs[0]].shape)

    def part(argument: Argument) -> object:
        if not isinstance(argument, Ref):
            return argument
        shape = values[argument.name].shape
        axis = rows.axis - width + len(shape)
        return argument if axis < 0 or shape[axis] == 1 else ValueSlice(argument.name, replace(rows, axis=axis))

    return [part(argument) for argument in operator.args]


def _first_argument(operator: Operator, rows: RowSlice, values: Values, is_free: bool) -> Arguments | None:
    """Return the same rows of the first argument, where the operator works on each of them by itself."""
    source = operator.args[0]
    return (ValueSlice(source.name, rows), *operator.args[1:]) if is_free and isinstance(source, Ref) else None


def _linear(operator: Operator, rows: RowSlice, values: Values) -> Arguments | None:
    is_free = rows.axis < len(values[operator.outputs[0]].shape) - 1
    return _first_argument(operator, rows, values, is_free)


def _product(operator: Operator, rows: RowSlice, values: Values) -> Arguments | None:
    """Slice a product of matrices [..., T, D] and [..., D, S]: rows T."""
    source = operator.args[0]
    width = len(values[operator.outputs[0]].shape)
    is_free = isinstance(source, Ref) and len(values[source.name].shape) == width and rows.axis == width - 2
    return _first_argument(operator, rows, values, is_free)


def _norm(operator: Operator, rows: RowSlice, values: Values) -> Arguments | None:
    normed = operator.args[1]
    assert isinstance(normed, list)
    is_free = rows.axis < len(values[operator.outputs[0]].shape) - len(normed)
    return _first_argument(operator, rows, values, is_free)


def _softmax(operator: Operator, rows: RowSlice, values: Values) -> Arguments | None:
    axis = operator.args[1]
    is_free = isinstance(axis, int) and axis % len(values[operator.outputs[0]].shape) != rows.axis
    return _first_argument(operator, rows, values, is_free)


def _embedding(operator: Operator, rows: RowSlice, values: Values) -> Arguments | None:
    table, index, *rest = operator.args
    if not isinstance(index, Ref) or rows.axis >= len(values[index.name].shape):
        return None
    return (table, ValueSlice(index.name, rows), *rest)


def _attention(operator: Operator, rows: RowSlice, values: Values) -> Arguments | None:
    """Slice queries [..., T, D]: rows T, and the keys and values that these may see."""
    q, k, v, *given = operator.args
    rest: list[Any] = [*given, *(None, 0.0, False)[len(given) :]]
    mask, rate, is_causal = rest
    if not (isinstance(q, Ref) and isinstance(k, Ref) and isinstance(v, Ref)) or rate != 0.0:
        return None
    shape = values[operator.outputs[0]].shape
    axis, keys = len(shape) - 2, values[k.name].shape[-2]
    if rows.axis != axis or len(values[q.name].shape) != len(shape):
        return None
    query = ValueSlice(q.name, rows)
    if not is_causal:
        if isinstance(mask, Ref):
            mask = _each_element(replace(operator, args=(mask,)), rows, values)[0]
        return (query, k, v, mask, rate, False)
    if rows.index:
        return (query, k, v, SeenKeys(rows.index, keys), rate, False)
    if rows.count != 1:
        return None
    seen = rows.first + 1
    if seen >= keys:
        return (query, k, v, None, rate, False)
    parts = [ValueSlice(x.name, RowSlice(len(values[x.name].shape) - 2, seen)) for x in (k, v)]
    return (query, *parts, None, rate, False)


def _concatenation(operator: Operator, rows: RowSlice, values: Values) -> Arguments | None:
    tensors, axis = (*operator.args, 0)[:2]
    if not isinstance(tensors, list) or not isinstance(axis, int):
        return None
    if axis % len(values[operator.outputs[0]].shape) == rows.axis:
        return None
    return ([ValueSlice(t.name, rows) if isinstance(t, Ref) else t for t in tensors], axis)


def _shown(operator: Operator, rows: RowSlice, values: Values) -> Arguments | None:
    """Find the axis of the first argument by the steps in memory of a result without gaps."""
    source, *rest = operator.args
    assert isinstance(source, Ref)
    if operator.op == "aten.view.dtype":  # the same bits as other numbers
        return None
    shape = values[source.name].shape
    shown = callable_of(operator.op)(_like(values[source.name], shape), *(decode(a, {}) for a in rest))
    first = shown[0] if isinstance(shown, list | tuple) else shown
    step, count = first.stride(rows.axis), first.shape[rows.axis]
    steps = zip(packed_stride(shape), shape, strict=True)
    axes = [axis for axis, found in enumerate(steps) if found == (step, count)]
    if len(axes) != 1:
        return None
    if operator.op_type in _GIVEN_SIZES:
        sizes: list[Argument] = list(first.shape)
        sizes[rows.axis] = rows.count
        rest = [sizes, *rest[1:]]
    return (ValueSlice(source.name, replace(rows, axis=axes[0])), *rest)


def _like(value: Value, shape: Sequence[int]) -> torch.Tensor:
    """Create a tensor without data. All floats are float32: operands of several precisions are legal on the device."""
    dtype: torch.dtype = getattr(torch, value.dtype)
    return torch.empty(tuple(shape), dtype=torch.float32 if dtype.is_floating_point else dtype, device="meta")


def _makes(operator: Operator, args: Arguments, rows: RowSlice, values: Values) -> bool:
    """Return whether the operator, run on such arguments without data, makes as many rows, and as much of each."""

    def tensor_of(argument: Ref | ValueSlice | SeenKeys) -> torch.Tensor:
        match argument:
            case SeenKeys(index, keys):
                return torch.empty((values[index].shape[0], keys), dtype=torch.bool, device="meta")
            case ValueSlice(name, part):
                return _like(values[name], with_rows(values[name].shape, part))
            case Ref(name):
                return _like(values[name], values[name].shape)

    kwargs = {key: decode(value, {}) for key, value in operator.kwargs.items()}
    try:
        made = callable_of(operator.op)(*(decode(substituted(a, tensor_of), {}) for a in args), **kwargs)
    except RuntimeError:
        return False
    tensors = made if isinstance(made, list | tuple) else [made]
    return [tuple(t.shape) for t in tensors] == [with_rows(values[n].shape, rows) for n in operator.outputs]


def with_rows(shape: Sequence[int], rows: RowSlice) -> tuple[int, ...]:
    """Return the shape of those rows of a value of such a shape."""
    return (*shape[: rows.axis], rows.count, *shape[rows.axis + 1 :])


_RULES: Final[dict[str, Callable[[Operator, RowSlice, Values], Arguments | None]]] = {
    **dict.fromkeys(_SHOWING, _shown),
    **dict.fromkeys(("matmul", "mm", "bmm"), _product),
    **dict.fromkeys(("layer_norm", "rms_norm"), _norm),
    **dict.fromkeys(("softmax", "log_softmax"), _softmax),
    "linear": _linear,
    "embedding": _embedding,
    "scaled_dot_product_attention": _attention,
    "cat": _concatenation,
}


@dataclass(frozen=True, slots=True)
class _Plan:
    """An operator that reads parts of its inputs, and the rows that it makes of its outputs: None for all of them."""

    args: Arguments
    rows: RowSlice | None


def push_down_slices(graph: ModelGraph) -> ModelGraph:
    """Push slices down: where at most half of a value's rows are read, only these are computed.

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
    """Plan, by operator name, those that need not make, or not read, all rows."""
    plans: dict[str, _Plan] = {}
    #: Value → the rows that its readers want, all the same, or None for all rows.
    wanted: dict[str, RowSlice | None] = dict.fromkeys((*graph.outputs, *graph.updates.values()))

    def note(read: Ref | ValueSlice | SeenKeys) -> None:
        if not isinstance(read, SeenKeys):
            rows = read.rows if isinstance(read, ValueSlice) else None
            wanted[read.name] = rows if wanted.get(read.name, rows) == rows else None

    for operator in reversed(graph.operators):
        plan = _plan(graph, operator, {wanted[name] for name in operator.outputs if name in wanted})
        if plan is not None:
            plans[operator.name] = plan
        substituted([*(operator.args if plan is None else plan.args), *operator.kwargs.values()], note)
    return plans


def _plan(graph: ModelGraph, operator: Operator, wanted: set[RowSlice | None]) -> _Plan | None:
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
    part = ValueSlice(source, selected)
    return _Plan((part, selected.axis, 0) if operator.op_type == "select" else (part,), None)


class _Writer:
    """Writes operators that read parts: those of whole values are cut out first, once each."""

    def __init__(self, values: Mapping[str, Value]) -> None:
        self.values = dict(values)
        self.operators: list[Operator] = []
        #: Values of which only some rows are made.
        self.partial: set[str] = set()
        self._cut: dict[ValueSlice | SeenKeys, Ref] = {}

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

    def _value(self, reader: Operator, read: Ref | ValueSlice | SeenKeys) -> Ref:
        if isinstance(read, Ref) or (isinstance(read, ValueSlice) and read.name in self.partial):
            return Ref(read.name)
        if read not in self._cut:
            self._cut[read] = self._mask(reader, read) if isinstance(read, SeenKeys) else self._part(reader, read)
        return self._cut[read]

    def _part(self, reader: Operator, part: ValueSlice) -> Ref:
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
        self, reader: Operator, made: tuple[Dtype, tuple[int, ...], bool], op: str, *args: Argument, **kwargs: Argument
    ) -> Ref:  # fmt: skip
        """Add an operator before ``reader``; ``made``: dtype, shape and ``requires_grad`` of its value."""
        name = f"{reader.name}__rows_{len(self.operators)}"
        value = Value(f"{name}__outputs__0", ValueKind.OPERATOR, *made)
        self.values[value.name] = value
        self.operators.append(Operator(name, op, parse_operator(op).word, args, kwargs, (value.name,), reader.module))
        return Ref(value.name)
