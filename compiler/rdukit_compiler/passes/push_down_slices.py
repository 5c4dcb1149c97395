"""Slice pushdown: unread rows are not computed. ``head(norm(x)[:, -1])`` reads one row of the last layer.

In a language model's last layer, everything but keys and values is then computed for one token; in a vision
transformer's, for the class token. Rows of a product, a norm or an attention are independent, so the values that are
read do not change, although a kernel for fewer rows may sum in another order. A row is the part of a tensor at one
position of any axis. ``needed_rows`` has a rule for each operator.

Source: ours; ONNX Runtime moves gathers upstream, and llama.cpp does so in its models.
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
#: Operators that only move the numbers of their first argument: views if the layout allows.
_SHOWING: Final = frozenset(
    "view reshape _unsafe_view flatten unflatten unsqueeze squeeze transpose t permute expand select slice chunk split "
    "split_with_sizes unbind alias detach".split()
)
#: Those of them whose arguments contain the sizes of the result.
_GIVEN_SIZES: Final = frozenset({"view", "reshape", "_unsafe_view", "expand"})
#: Element-wise operators that torch does not mark as such.
_ELEMENTWISE: Final = frozenset({"to", "contiguous", "_to_copy"})
#: Operators for which the pass pays: kernels of all others skip rows anyway.
_PRODUCTS: Final = frozenset({"linear", "matmul", "mm", "bmm", "scaled_dot_product_attention"})


@dataclass(frozen=True, slots=True)
class RowSlice:
    """``count`` rows along ``axis``: from ``first`` on, or those whose numbers are in the value called ``index``
    [count].
    """

    axis: int
    count: int
    first: int = 0
    index: str = ""


@dataclass(frozen=True, slots=True)
class ValueSlice:
    """Stand-in, among an operator's arguments, for some rows of a value."""

    name: str
    rows: RowSlice


@dataclass(frozen=True, slots=True)
class SeenKeys:
    """Stand-in for the causal mask, bool [T, keys], of the queries whose numbers are in the value ``index`` [T]."""

    index: str
    keys: int


def selected_rows(operator: Operator, values: Values) -> RowSlice | None:
    """Return the rows that ``select``, ``slice`` or ``index_select`` reads from its first argument; None for others."""
    if operator.op not in {"aten.select.int", "aten.slice.Tensor", "aten.index_select.default"}:
        return None
    source, axis, *rest = (*operator.args, 0)[: max(2, len(operator.args))]  # slice's default axis is 0
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
    """Replace each value and stand-in in ``argument`` by its ``value_of``."""
    match argument:
        case Ref() | ValueSlice() | SeenKeys():
            return value_of(argument)
        case list():
            return [substituted(item, value_of) for item in argument]
        case _:
            return argument


def needed_rows(operator: Operator, rows: RowSlice, values: Values) -> Arguments | None:
    """Return the arguments with which ``operator`` computes only these rows of each output, or None without a rule."""
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
    """Slice every operand; axes are counted from the last one, and operands may be broadcast."""
    width = len(values[operator.outputs[0]].shape)

    def part(argument: Argument) -> object:
        if not isinstance(argument, Ref):
            return argument
        shape = values[argument.name].shape
        axis = rows.axis - width + len(shape)
        return argument if axis < 0 or shape[axis] == 1 else ValueSlice(argument.name, replace(rows, axis=axis))

    return [part(argument) for argument in operator.args]


def _first_argument(operator: Operator, rows: RowSlice, values: Values, is_free: bool) -> Arguments | None:
    """Return the same rows of the first argument, if the operator computes each row separately."""
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
    """Slice queries [..., T, D] along T, and the keys and values that these may see."""
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
    """Find the axis of the first argument by the strides of a dense result."""
    source, *rest = operator.args
    assert isinstance(source, Ref)
    if operator.op == "aten.view.dtype":  # the same bits, read as other numbers
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
    """Check without data that the operator, on these arguments, returns that number of rows with unchanged other
    sizes.
    """

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
    """Return the shape of these rows of a value with shape ``shape``."""
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
    """New arguments of an operator that reads parts of its inputs, and the rows of its outputs that it computes: None
    for all.
    """

    args: Arguments
    rows: RowSlice | None


def push_down_slices(graph: ModelGraph) -> ModelGraph:
    """Push slices down: where at most half of a value's rows are read, only these are computed.

    Inputs, outputs and new values of buffers stay whole.
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
    """Return plans, by name, for the operators that need not compute or read all rows."""
    plans: dict[str, _Plan] = {}
    #: Value → the rows that all its readers want, or None for all rows.
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
        return None  # the index may be computed after the operators that would need it
    source = operator.inputs[0]
    if selected.count * 2 > graph.values[source].shape[selected.axis]:
        return None
    part = ValueSlice(source, selected)
    return _Plan((part, selected.axis, 0) if operator.op_type == "select" else (part,), None)


class _Writer:
    """Writes operators that read parts; each part of a whole value is cut out once."""

    def __init__(self, values: Mapping[str, Value]) -> None:
        self.values = dict(values)
        self.operators: list[Operator] = []
        #: Values of which only some rows are computed.
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
