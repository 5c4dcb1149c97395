"""Rules of products, lookups and attention."""

from collections.abc import Sequence
from typing import Final

from rdukit.pef.kernel import Argument, Ref
from rdukit.pef.model import Dtype
from rdukit_compiler.chips.operands import Operands, argument_of
from rdukit_compiler.ir import Operator

#: Operators that compute each sample, along the first operand's first dimension, separately → dimensions of a batch.
BY_SAMPLE: Final = {
    "conv1d": 3, "conv2d": 4, "conv3d": 5, "max_pool1d": 3, "max_pool2d": 4, "max_pool3d": 5, "avg_pool1d": 3,
    "avg_pool2d": 4, "avg_pool3d": 5, "adaptive_avg_pool2d": 4, "adaptive_max_pool2d": 4,
}  # fmt: skip


def split_linear_layer(given: Operands, operator: Operator) -> bool:
    x, weight, *bias = operator.args
    if not (isinstance(x, Ref) and isinstance(weight, Ref)):
        return False
    if weight.name in given.groups:
        return _split_features(given, operator, x.name, weight.name, [b.name for b in bias if isinstance(b, Ref)])
    dim = given.choose(x.name, range(len(given.graph.shape(x.name)) - 1))
    if dim is None:
        return False
    return given.add(
        operator, dim,
        lambda chip: [Ref(given.graph.part(x.name, dim, chip)), *(given.whole(a, chip) for a in operator.args[1:])],
    )  # fmt: skip


def _split_features(given: Operands, operator: Operator, x: str, weight: str, biases: Sequence[str]) -> bool:
    """Let each chip compute its own output features from the whole input and its rows of the weight."""
    return given.add(
        operator, len(given.graph.shape(operator.outputs[0])) - 1,
        lambda chip: [
            Ref(given.graph.whole(x, chip)), *(Ref(_rows(given, name, chip)) for name in (weight, *biases)),
        ],
    )  # fmt: skip


def _rows(given: Operands, parameter: str, chip: int) -> str:
    """Return a chip's rows of a split parameter: an equal part of each group of rows."""
    groups, total = given.groups[parameter], given.graph.shape(parameter)[0]
    rows = total // groups // len(given.graph.chips)
    pieces = [
        given.graph.add_piece(parameter, group, chip, group * (total // groups) + chip * rows, rows)
        for group in range(groups)
    ]
    if groups == 1:
        return pieces[0]
    shape = (groups * rows, *given.graph.shape(parameter)[1:])
    return given.graph.join(f"{parameter}__rows", pieces, 0, chip, shape, like=parameter)


def split_lookup(given: Operands, operator: Operator) -> bool:
    table, indices, *rest = operator.args
    if not (isinstance(table, Ref) and isinstance(indices, Ref)):
        return False
    if table.name in given.groups:
        return _split_table(given, operator, table.name, indices.name)
    dim = given.choose(indices.name, range(len(given.graph.shape(indices.name))))
    if dim is None:
        return False
    return given.add(
        operator, dim, lambda chip: [given.whole(table, chip), Ref(given.graph.part(indices.name, dim, chip)), *rest]
    )


def _split_table(given: Operands, operator: Operator, table: str, indices: str) -> bool:
    """Let each chip look up the indices of its own rows, with zeros for the others, and add the results up.

    The first chip also takes indices below its rows, and the last chip those above: these are refused as usual.
    """
    graph, made, shape = given.graph, operator.outputs[0], given.graph.shape(indices)
    partial = [_own_rows(given, operator, table, indices, chip) for chip in graph.chips]
    dim = graph.find_dim(made, range(len(shape)))
    if dim is None:
        graph.place(made, [graph.total(made, partial, chip, made) for chip in graph.chips])
        return True
    pieces = [graph.cut(name, dim, chip, len(graph.chips)) for chip, name in enumerate(partial)]
    graph.place(made, [graph.total(made, [own[chip] for own in pieces], chip, made) for chip in graph.chips], dim)
    return True


def _own_rows(given: Operands, operator: Operator, table: str, indices: str, chip: int) -> str:
    """Look up indices of a chip's rows; return zeros for all others."""
    graph, made, shape = given.graph, operator.outputs[0], given.graph.shape(indices)
    rows, name = graph.shape(table)[0] // len(graph.chips), f"{operator.name}__rows"
    padding = operator.args[2] if len(operator.args) > 2 else -1
    first = chip * rows

    def add(op: str, *args: Argument, dtype: Dtype | None = None) -> str:
        return graph.add_operator(name, op, args, chip, [shape], indices, dtype)

    local = add("aten.sub.Tensor", Ref(graph.whole(indices, chip)), first) if chip else graph.whole(indices, chip)
    masks = [add("aten.lt.Scalar", Ref(local), 0, dtype="bool")] if chip else []
    masks += [add("aten.ge.Scalar", Ref(local), rows, dtype="bool")] if chip < len(graph.chips) - 1 else []
    outside = masks[0]
    if len(masks) > 1:
        outside = add("aten.logical_or.default", Ref(masks[0]), Ref(masks[1]), dtype="bool")
    inside = add("aten.masked_fill.Scalar", Ref(local), Ref(outside), 0)
    own = padding - first if isinstance(padding, int) and first <= padding < first + rows else -1
    arguments = (Ref(_rows(given, table, chip)), Ref(inside), own)
    full = (*shape, graph.shape(table)[1])
    found = graph.add_operator(operator.name, operator.op, arguments, chip, [full], made, of=operator)
    mask = graph.add_operator(name, "aten.unsqueeze.default", (Ref(outside), -1), chip, [(*shape, 1)], indices, "bool")
    return graph.add_operator(
        name, "aten.masked_fill.Scalar", (Ref(found), Ref(mask), 0), chip, [full], made
    )  # fmt: skip


def split_product(given: Operands, operator: Operator) -> bool:
    """Split a product along a dimension of its result: of the batch, of the left rows, or of the right columns."""
    left, right = operator.args[:2]
    if not (isinstance(left, Ref) and isinstance(right, Ref)) or len(operator.args) > 2:
        return False
    shapes = [given.graph.shape(left.name), given.graph.shape(right.name)]
    dims = len(given.graph.shape(operator.outputs[0]))
    if min(map(len, shapes)) < 2:
        return False
    found = []
    for side, (operand, shape) in enumerate(zip((left, right), shapes, strict=True)):
        contracted = len(shape) - 1 - side
        dim = given.choose(operand.name, [d for d in range(len(shape)) if d != contracted])
        if dim is not None:
            found.append(dim + dims - len(shape))
    if not found:
        return False
    dim = min(found)
    return given.add(
        operator, dim,
        lambda chip: [
            given.whole(left, chip) if dim == dims - 1 else given.sliced(left, dim, dims, chip),
            given.whole(right, chip) if dim == dims - 2 else given.sliced(right, dim, dims, chip),
        ],
    )  # fmt: skip


def split_attention(given: Operands, operator: Operator) -> bool:
    """Split attention along samples or heads, else along queries."""
    query, *others = operator.args
    dropout = argument_of(operator, 4, "dropout_p", 0.0)
    if not isinstance(query, Ref) or dropout != 0.0:
        return False
    dims = len(given.graph.shape(query.name))
    now = given.graph.dim_of.get(query.name)
    operands = [a.name for a in (query, *others[:2]) if isinstance(a, Ref)]
    even = [d for d in range(dims - 2) if all(given.graph.may_split(name, d, evenly=True) for name in operands)]
    if not any(name in given.graph.dim_of for name in operands):
        return False
    if not even:
        return _split_queries(given, operator, dims - 2)
    dim = now if now in even and now is not None else even[0]
    return given.add(operator, dim, lambda chip: [given.sliced(a, dim, dims, chip) for a in operator.args])


def _split_queries(given: Operands, operator: Operator, dim: int) -> bool:
    """Let each chip compute some of the queries, with all keys and values; a mask selects the causal ones."""
    query, key, value, *rest = operator.args
    defaults: tuple[Argument, ...] = (None, 0.0, False)
    mask, dropout, is_causal = [*rest, *defaults[len(rest) :]][:3]
    if not (isinstance(query, Ref) and isinstance(key, Ref) and given.graph.may_split(query.name, dim, evenly=True)):
        return False
    if len(rest) > 3 or set(operator.kwargs) - {"enable_gqa"} or (mask is not None and is_causal):
        return False
    keys, causal = given.graph.shape(key.name)[dim], bool(is_causal)

    def args_of(chip: int) -> list[Argument]:
        own = given.sliced(mask, dim, dim + 2, chip)
        seen = Ref(_causal_mask(given, operator, dim, keys, chip)) if causal else own
        part = Ref(given.graph.part(query.name, dim, chip))
        return [part, given.whole(key, chip), given.whole(value, chip), seen, dropout, False]

    return given.add(operator, dim, args_of)


def _causal_mask(given: Operands, operator: Operator, dim: int, keys: int, chip: int) -> str:
    """Add the causal mask of a chip's queries: keys up to the query's own position."""
    graph, made, name = given.graph, operator.outputs[0], f"{operator.name}__seen"
    sizes = graph.sizes(made, dim)
    first, count = sum(sizes[:chip]), sizes[chip]
    columns = graph.add_operator(name, "aten.arange.default", (keys,), chip, [(keys,)], made, "int64")
    rows = graph.add_operator(name, "aten.arange.start", (first, first + count), chip, [(count,)], made, "int64")
    rows = graph.add_operator(name, "aten.unsqueeze.default", (Ref(rows), -1), chip, [(count, 1)], made, "int64")
    return graph.add_operator(name, "aten.le.Tensor", (Ref(columns), Ref(rows)), chip, [(count, keys)], made, "bool")


def split_by_sample(given: Operands, operator: Operator) -> bool:
    x, *rest = operator.args
    is_batch = isinstance(x, Ref) and len(given.graph.shape(x.name)) == BY_SAMPLE[operator.op_type]
    if not isinstance(x, Ref) or not is_batch or given.choose(x.name, [0]) is None:
        return False
    return given.add(
        operator, 0, lambda chip: [Ref(given.graph.part(x.name, 0, chip)), *(given.whole(a, chip) for a in rest)]
    )
