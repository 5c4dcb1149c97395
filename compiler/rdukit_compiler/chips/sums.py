"""Rules of norms, sums and losses."""

from collections.abc import Callable, Sequence
from math import prod
from typing import Final

from rdukit.pef.kernel import Argument, Ref
from rdukit_compiler.chips.elements import split_elements
from rdukit_compiler.chips.operands import Operands, argument_of
from rdukit_compiler.ir import Operator

#: Losses of two tensors of one shape → position of ``reduction`` among the arguments.
PAIR_LOSSES: Final = {"mse_loss": 2, "l1_loss": 2, "smooth_l1_loss": 2, "huber_loss": 2}
_NONE, _MEAN, _SUM = 0, 1, 2


def _partial(given: Operands, operator: Operator, parts: Sequence[str], count: int | str | None) -> bool:
    """Add up the chips' partial results on the first chip, and divide by ``count``: a number, or a value on that
    chip.
    """
    graph, made = given.graph, operator.outputs[0]
    total = graph.total(made, parts, 0, made)
    args: list[Argument] = [
        Ref(total),
        *([] if count is None else [Ref(count) if isinstance(count, str) else count]),
    ]
    op = "aten.alias.default" if count is None else "aten.div.Tensor"
    outputs = graph.add_copy(operator, 0, args, [graph.shape(made)], {}, is_original=True, op=op)
    graph.place(made, outputs * len(graph.chips), owner=0)
    return True


def split_reduction(given: Operands, operator: Operator) -> bool:
    """Split a sum or mean over all elements, or over dimensions that are not split."""
    x = operator.args[0]
    if not isinstance(x, Ref) or x.name not in given.graph.dim_of:
        return False
    shape, made = given.graph.shape(x.name), operator.outputs[0]
    asked = argument_of(operator, 1, "dim")
    along = {int(d) % len(shape) for d in (asked if isinstance(asked, list) else [asked]) if isinstance(d, int)}
    keepdim = bool(argument_of(operator, 2, "keepdim", False))
    if not along:
        if operator.kwargs or given.graph.shape(made) or operator.op_type not in {"sum", "mean"}:
            return False
        now, op = given.graph.dim_of[x.name], "aten.sum.default"
        parts = [
            given.graph.add_operator(made, op, (Ref(given.graph.part(x.name, now, chip)),), chip, [()], made)
            for chip in given.graph.chips
        ]
        return _partial(given, operator, parts, prod(shape) if operator.op_type == "mean" else None)
    dim = given.choose(x.name, [d for d in range(len(shape)) if d not in along])
    if dim is None or any(isinstance(v, Ref) for v in operator.kwargs.values()):
        return False
    target = dim if keepdim else dim - sum(d < dim for d in along)
    return given.add(operator, target, lambda chip: [Ref(given.graph.part(x.name, dim, chip)), *operator.args[1:]])


def split_pair_loss(given: Operands, operator: Operator) -> bool:
    x, target = operator.args[:2]
    place = PAIR_LOSSES[operator.op_type]
    reduction = operator.args[place] if len(operator.args) > place else _MEAN
    if not (isinstance(x, Ref) and isinstance(target, Ref)) or operator.kwargs:
        return False
    shape = given.graph.shape(x.name)
    dim = given.graph.dim_of.get(x.name, given.graph.dim_of.get(target.name))
    if dim is None or given.graph.shape(target.name) != shape:
        return False
    rest = operator.args[place + 1 :]
    if reduction == _NONE:
        return split_elements(given, operator)
    parts = _losses(given, operator, lambda chip: [
        Ref(given.graph.part(x.name, dim, chip)), Ref(given.graph.part(target.name, dim, chip)), _SUM, *rest,
    ])  # fmt: skip
    return _partial(given, operator, parts, prod(shape) if reduction == _MEAN else None)


def split_cross_entropy(given: Operands, operator: Operator) -> bool:
    """Split over samples: each chip sums up its own losses, and counts them where the mean needs it."""
    defaults: tuple[Argument, ...] = (None, _MEAN, -100)
    x, target, weight, reduction, ignored, *rest = [*operator.args, *defaults[len(operator.args) - 2 :]]
    if not (isinstance(x, Ref) and isinstance(target, Ref)) or weight is not None or operator.kwargs:
        return False
    shape = given.graph.shape(x.name)
    dim = given.choose(x.name, [d for d in range(len(shape)) if d != 1]) if len(shape) > 1 else None
    if dim is None or len(given.graph.shape(target.name)) != len(shape) - 1 or dim:
        return False

    def args_of(chip: int) -> list[Argument]:
        slices: list[Argument] = [Ref(given.graph.part(name, 0, chip)) for name in (x.name, target.name)]
        return [*slices, None, _NONE if reduction == _NONE else _SUM, ignored, *rest]

    if reduction == _NONE:
        return given.add(operator, 0, args_of)
    parts = _losses(given, operator, args_of)
    return _partial(
        given, operator, parts, _count(given, operator, target.name, ignored) if reduction == _MEAN else None
    )


def _losses(given: Operands, operator: Operator, args_of: Callable[[int], Sequence[Argument]]) -> list[str]:
    made = operator.outputs[0]
    return [
        given.graph.add_operator(made, operator.op, args_of(chip), chip, [()], made, of=operator)
        for chip in given.graph.chips
    ]


def _count(given: Operands, operator: Operator, target: str, ignored: Argument) -> str:
    """Count the targets that are not ``ignored``: each chip counts its own, and the first adds them up."""
    name, made, counts = f"{operator.name}__count", operator.outputs[0], []
    for chip in given.graph.chips:
        part = given.graph.part(target, 0, chip)
        shapes = [given.local(target, 0, chip)]
        seen = given.graph.add_operator(name, "aten.ne.Scalar", (Ref(part), ignored), chip, shapes, made, "bool")
        counts.append(given.graph.add_operator(name, "aten.sum.default", (Ref(seen),), chip, [()], made, "int64"))
    return given.graph.total(name, counts, 0, counts[0])


def split_norm(given: Operands, operator: Operator) -> bool:
    """Split a norm over its last dimensions; weights and biases are whole."""
    x, *rest = operator.args
    if not isinstance(x, Ref) or not isinstance(rest[0], list):
        return False
    dim = given.choose(x.name, range(len(given.graph.shape(x.name)) - len(rest[0])))
    if dim is None:
        return False
    return given.add(
        operator, dim,
        lambda chip: [Ref(given.graph.part(x.name, dim, chip)), *(given.whole(a, chip) for a in rest)],
    )  # fmt: skip


def split_running(given: Operands, operator: Operator) -> bool:
    """Split an operator that runs along one dimension, its second argument, and keeps the shape."""
    x, along = operator.args[0], argument_of(operator, 1, "dim")
    if not isinstance(x, Ref) or not isinstance(along, int):
        return False
    dims = len(given.graph.shape(x.name))
    dim = given.choose(x.name, [d for d in range(dims) if d != along % dims])
    if dim is None:
        return False
    return given.add(operator, dim, lambda chip: [given.sliced(x, dim, dims, chip), *operator.args[1:]])
