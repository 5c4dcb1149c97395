"""Rules of views, and of operators that cut and join."""

from collections.abc import Sequence
from math import prod

from rdukit.pef.kernel import Argument, Ref
from rdukit_compiler.chips.operands import Operands, argument_of
from rdukit_compiler.ir import Operator


def split_reshape(given: Operands, operator: Operator) -> bool:
    x, made = operator.args[0], operator.outputs[0]
    if not isinstance(x, Ref) or x.name not in given.graph.dim_of:
        return False
    shape, wanted, count = given.graph.shape(x.name), given.graph.shape(made), len(given.graph.chips)
    now = given.graph.dim_of[x.name]
    for dim in (now, *(d for d in range(len(shape)) if d != now)):
        target = reshaped_dim(shape, wanted, dim, count)
        if target is not None:
            return _reshaped(given, operator, x.name, dim, target)
    return False


def _reshaped(given: Operands, operator: Operator, x: str, dim: int, target: int) -> bool:
    return given.add(
        operator,
        target,
        lambda chip: [Ref(given.graph.part(x, dim, chip)), list(given.local(operator.outputs[0], target, chip))],
        op="aten.reshape.default",
    )


def _moved(given: Operands, operator: Operator, order: Sequence[int]) -> bool:
    """Split an operator that permutes the dimensions of its operand into ``order``."""
    x = operator.args[0]
    if not isinstance(x, Ref) or x.name not in given.graph.dim_of:
        return False
    dim = given.graph.dim_of[x.name]
    return given.add(
        operator, list(order).index(dim), lambda chip: [Ref(given.graph.part(x.name, dim, chip)), *operator.args[1:]]
    )


def split_transpose(given: Operands, operator: Operator) -> bool:
    x, *swapped = operator.args
    dims = len(given.graph.shape(x.name)) if isinstance(x, Ref) else 0
    order = list(range(dims))
    first, second = (d % dims for d in (swapped or (0, 1)) if isinstance(d, int))
    order[first], order[second] = order[second], order[first]
    return _moved(given, operator, order)


def split_permute(given: Operands, operator: Operator) -> bool:
    order = operator.args[1]
    return isinstance(order, list) and _moved(given, operator, [d % len(order) for d in order if isinstance(d, int)])


def split_unsqueeze(given: Operands, operator: Operator) -> bool:
    x, place = operator.args[:2]
    if not isinstance(x, Ref) or x.name not in given.graph.dim_of or not isinstance(place, int):
        return False
    dim, dims = given.graph.dim_of[x.name], len(given.graph.shape(x.name)) + 1
    return given.add(
        operator, dim + (place % dims <= dim), lambda chip: [Ref(given.graph.part(x.name, dim, chip)), place]
    )


def split_expand(given: Operands, operator: Operator) -> bool:
    x, sizes = operator.args[:2]
    if not isinstance(x, Ref) or x.name not in given.graph.dim_of or not isinstance(sizes, list):
        return False
    dim = given.graph.dim_of[x.name]
    target = dim + len(sizes) - len(given.graph.shape(x.name))
    local = [-1 if position == target else size for position, size in enumerate(sizes)]
    return given.add(operator, target, lambda chip: [Ref(given.graph.part(x.name, dim, chip)), local])


def split_slice(given: Operands, operator: Operator) -> bool:
    defaults: tuple[Argument, ...] = (0, None, None)
    x, along, *bounds = [*operator.args, *defaults[len(operator.args) - 1 :]]
    if not isinstance(x, Ref) or not isinstance(along, int):
        return False
    shape = given.graph.shape(x.name)
    keeps = given.graph.shape(operator.outputs[0])[along % len(shape)] == shape[along % len(shape)]
    dim = given.choose(x.name, [d for d in range(len(shape)) if d != along % len(shape) or keeps])
    if dim is None:
        return False
    if dim == along % len(shape):
        return given.add(operator, dim, lambda chip: [Ref(given.graph.part(x.name, dim, chip))], "aten.alias.default")
    return given.add(operator, dim, lambda chip: [Ref(given.graph.part(x.name, dim, chip)), along, *bounds])


def split_select(given: Operands, operator: Operator) -> bool:
    x, along, index = operator.args[:3]
    if not isinstance(x, Ref) or not isinstance(along, int):
        return False
    dims = len(given.graph.shape(x.name))
    dim = given.choose(x.name, [d for d in range(dims) if d != along % dims])
    if dim is None:
        return False
    return given.add(
        operator, dim - (along % dims < dim), lambda chip: [Ref(given.graph.part(x.name, dim, chip)), along, index]
    )


def split_chunks(given: Operands, operator: Operator) -> bool:
    x, how = operator.args[:2]
    asked = argument_of(operator, 2, "dim", 0)
    if not isinstance(x, Ref) or not isinstance(asked, int):
        return False
    dims = len(given.graph.shape(x.name))
    along = asked % dims
    now = given.graph.dim_of.get(x.name)
    groups = _groups_of(given, x.name)
    if now == along and groups > 1 and groups == chunk_groups(operator, given.graph.shape(x.name)):
        count = len(operator.outputs)
        return given.add(
            operator, along,
            lambda chip: [
                Ref(given.graph.part(x.name, along, chip)), count, along,
            ],
            op="aten.chunk.default",
        )  # fmt: skip
    dim = given.choose(x.name, [d for d in range(dims) if d != along])
    if dim is None:
        return False
    return given.add(operator, dim, lambda chip: [Ref(given.graph.part(x.name, dim, chip)), how, along], op=operator.op)


def _groups_of(given: Operands, name: str) -> int:
    """Return the groups of a linear layer's features; 0 for any other value."""
    maker = given.graph.source.producers().get(name)
    weight = maker.args[1] if maker is not None and maker.op_type == "linear" else None
    return given.groups.get(weight.name, 0) if isinstance(weight, Ref) else 0


def split_cat(given: Operands, operator: Operator) -> bool:
    items = operator.args[0]
    along = argument_of(operator, 1, "dim", 0)
    if not isinstance(items, list) or not isinstance(along, int):
        return False
    dims = len(given.graph.shape(operator.outputs[0]))
    found = [
        dim for item in items if isinstance(item, Ref) and len(given.graph.shape(item.name)) == dims
        and (dim := given.choose(item.name, [d for d in range(dims) if d != along % dims])) is not None
    ]  # fmt: skip
    if not found or any(isinstance(i, Ref) and len(given.graph.shape(i.name)) != dims for i in items):
        return False
    dim = min(found)
    return given.add(operator, dim, lambda chip: [given.sliced(items, dim, dims, chip), along], op=operator.op)


def reshaped_dim(shape: Sequence[int], wanted: Sequence[int], dim: int, count: int) -> int | None:
    """Return the dimension of ``wanted`` whose ``count`` equal slices have the same elements as those of ``dim``, or
    None.

    Both shapes have the same elements in the same order.
    """
    before = prod(shape[:dim])
    if shape[dim] % count or shape[dim] < count:
        return None
    for target, size in enumerate(wanted):
        if prod(wanted[:target]) == before and size >= count:
            return None if size % count else target
    return None


def chunk_groups(operator: Operator, shape: Sequence[int]) -> int:
    """Return into how many equal parts an operator cuts the last dimension of a value of ``shape``; 0 for any other."""
    if operator.op_type not in {"chunk", "split", "split_with_sizes"} or not shape:
        return 0
    given = argument_of(operator, 2, "dim", 0)
    count = len(operator.outputs)
    if not isinstance(given, int) or given % len(shape) != len(shape) - 1 or count < 2 or shape[-1] % count:
        return 0
    how, size = operator.args[1], shape[-1] // count
    is_equal = {
        "chunk": how == count, "split": how == size or how == [size] * count, "split_with_sizes": how == [size] * count
    }  # fmt: skip
    return count if is_equal[operator.op_type] else 0
