"""Rules of operators: along which dimension each can be split, and what each chip then computes.

A rule adds an operator's copies to the graph that is written and returns True; it returns False where it cannot split
the operator, which every chip then computes whole. Rules only use what is exact: a chip computes its slice of the
result from slices of the operands. Sums over a split dimension are made of the chips' partial sums, in chip order.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, Final

import torch

from rdukit.pef.kernel import Argument, Ref
from rdukit.pef.model import Dtype
from rdukit_compiler.chips.splitter import SplitGraph
from rdukit_compiler.ir import Operator
from rdukit_compiler.operators.naming import callable_of
from rdukit_compiler.operators.vocabulary import CASTS

#: Operators that compute each element from the one at the same place, though torch does not mark them so.
_UNARY: Final = CASTS | {"alias", "detach", "contiguous", "clone", "zeros_like", "ones_like", "full_like"}
#: Operators that treat each sample, which is their first operand's first dimension, by itself → dimensions of a batch.
_BY_SAMPLE: Final = {
    "conv1d": 3, "conv2d": 4, "conv3d": 5, "max_pool1d": 3, "max_pool2d": 4, "max_pool3d": 5, "avg_pool1d": 3,
    "avg_pool2d": 4, "avg_pool3d": 5, "adaptive_avg_pool2d": 4, "adaptive_max_pool2d": 4,
}  # fmt: skip
#: Losses of two tensors of one shape → position of ``reduction`` among the arguments.
_PAIR_LOSSES: Final = {"mse_loss": 2, "l1_loss": 2, "smooth_l1_loss": 2, "huber_loss": 2}
_NONE, _MEAN, _SUM = 0, 1, 2


@dataclass(slots=True)
class Rules:
    """Applies the rules to the operators of one graph.

    Args:
        graph: that is written. groups: of each parameter whose rows are split, the blocks of rows that are split each.
    """

    graph: SplitGraph
    groups: dict[str, int] = field(default_factory=dict)

    def apply(self, operator: Operator) -> bool:
        """Split an operator over the chips; returns False, and adds nothing, where it cannot be split."""
        rule = _RULES.get(operator.op_type.rstrip("_"))
        if rule is not None:
            return rule(self, operator)
        if operator.op_type in _BY_SAMPLE:
            return self._by_sample(operator)
        if operator.op_type in _UNARY or _is_pointwise(operator.op):
            return self._pointwise(operator)
        return False

    # -- tools of rules ----------------------------------------------------------------------------------------------

    def _layout(self, argument: Argument) -> int | None:
        return self.graph.dim_of.get(argument.name) if isinstance(argument, Ref) else None

    def _sliced(self, argument: Argument, dim: int, dims: int, chip: int) -> Argument:
        """Return an operand's slice along dimension ``dim`` of a result of ``dims``; the whole where it is broadcast.

        A list stands for its items.
        """
        if isinstance(argument, list):
            return [self._sliced(item, dim, dims, chip) for item in argument]
        if not isinstance(argument, Ref):
            return argument
        shape = self.graph.shape(argument.name)
        own = dim - (dims - len(shape))
        if own < 0 or shape[own] == 1:
            return Ref(self.graph.whole(argument.name, chip))
        return Ref(self.graph.part(argument.name, own, chip))

    def whole(self, argument: Any, chip: int) -> Any:
        """Return an argument with whole values in the place of what it names."""
        if isinstance(argument, list):
            return [self.whole(item, chip) for item in argument]
        return Ref(self.graph.whole(argument.name, chip)) if isinstance(argument, Ref) else argument

    def _local(self, name: str, dim: int, chip: int) -> tuple[int, ...]:
        shape = self.graph.shape(name)
        return (*shape[:dim], self.graph.sizes(name, dim)[chip], *shape[dim + 1 :])

    def _add(
        self, operator: Operator, dim: int, args_of: Callable[[int], Sequence[Argument]], op: str | None = None
    ) -> bool:  # fmt: skip
        """Add a copy for each chip whose outputs are slices along ``dim``."""
        made = []
        for chip in self.graph.chips:
            kwargs = {key: self._sliced(v, dim, len(self.graph.shape(operator.outputs[0])), chip)
                      for key, v in operator.kwargs.items()}  # fmt: skip
            shapes = [self._local(name, dim, chip) for name in operator.outputs]
            args = tuple(args_of(chip))
            made.append(self.graph.add_copy(operator, chip, args, shapes, {} if op else kwargs, op=op))
        for position, name in enumerate(operator.outputs):
            self.graph.place(name, [outputs[position] for outputs in made], dim)
        return True

    def _choose(self, name: str, legal: Sequence[int]) -> int | None:
        """Return the dimension along which to split an operand: that which it has if that is legal, else another."""
        now = self.graph.dim_of.get(name)
        if now is None or now in legal:
            return now
        return self.graph.find_dim(name, legal)

    # -- element by element ------------------------------------------------------------------------------------------

    def _pointwise(self, operator: Operator) -> bool:
        shape = self.graph.shape(operator.outputs[0])
        found = []
        for name in operator.inputs:
            dim = self.graph.dim_of.get(name)
            if dim is not None:
                found.append(dim + len(shape) - len(self.graph.shape(name)))
        if not found or len(operator.outputs) > 1:
            return False
        dim = min(found)
        return self._add(operator, dim, lambda chip: [self._sliced(a, dim, len(shape), chip) for a in operator.args])

    # -- along all dimensions but some -------------------------------------------------------------------------------

    def _but_last(self, operator: Operator) -> bool:
        """Split a norm over its last dimensions; weights and biases are whole."""
        x, *rest = operator.args
        if not isinstance(x, Ref) or not isinstance(rest[0], list):
            return False
        dim = self._choose(x.name, range(len(self.graph.shape(x.name)) - len(rest[0])))
        if dim is None:
            return False
        return self._add(
            operator, dim,
            lambda chip: [Ref(self.graph.part(x.name, dim, chip)), *(self.whole(a, chip) for a in rest)],
        )  # fmt: skip

    def _along(self, operator: Operator) -> bool:
        """Split what runs along one dimension, its second argument, and keeps the shape."""
        x, along = operator.args[0], operator.args[1] if len(operator.args) > 1 else operator.kwargs.get("dim")
        if not isinstance(x, Ref) or not isinstance(along, int):
            return False
        dims = len(self.graph.shape(x.name))
        dim = self._choose(x.name, [d for d in range(dims) if d != along % dims])
        if dim is None:
            return False
        return self._add(operator, dim, lambda chip: [self._sliced(x, dim, dims, chip), *operator.args[1:]])

    def _by_sample(self, operator: Operator) -> bool:
        x, *rest = operator.args
        is_batch = isinstance(x, Ref) and len(self.graph.shape(x.name)) == _BY_SAMPLE[operator.op_type]
        if not isinstance(x, Ref) or not is_batch or self._choose(x.name, [0]) is None:
            return False
        return self._add(
            operator, 0, lambda chip: [Ref(self.graph.part(x.name, 0, chip)), *(self.whole(a, chip) for a in rest)]
        )

    # -- products ----------------------------------------------------------------------------------------------------

    def _linear(self, operator: Operator) -> bool:
        x, weight, *bias = operator.args
        if not (isinstance(x, Ref) and isinstance(weight, Ref)):
            return False
        if weight.name in self.groups:
            return self._split_linear(operator, x.name, weight.name, [b.name for b in bias if isinstance(b, Ref)])
        dim = self._choose(x.name, range(len(self.graph.shape(x.name)) - 1))
        if dim is None:
            return False
        return self._add(
            operator, dim,
            lambda chip: [Ref(self.graph.part(x.name, dim, chip)), *(self.whole(a, chip) for a in operator.args[1:])],
        )  # fmt: skip

    def _split_linear(self, operator: Operator, x: str, weight: str, biases: Sequence[str]) -> bool:
        """Let each chip make its own output features from the whole input, with the rows of the weight that it has."""
        return self._add(
            operator, len(self.graph.shape(operator.outputs[0])) - 1,
            lambda chip: [
                Ref(self.graph.whole(x, chip)), *(Ref(self._rows(name, chip)) for name in (weight, *biases)),
            ],
        )  # fmt: skip

    def _rows(self, parameter: str, chip: int) -> str:
        """Return a chip's rows of a split parameter: of each group of rows an equal part."""
        groups, total = self.groups[parameter], self.graph.shape(parameter)[0]
        rows = total // groups // len(self.graph.chips)
        pieces = [
            self.graph.add_piece(parameter, group, chip, group * (total // groups) + chip * rows, rows)
            for group in range(groups)
        ]
        if groups == 1:
            return pieces[0]
        shape = (groups * rows, *self.graph.shape(parameter)[1:])
        return self.graph.join(f"{parameter}__rows", pieces, 0, chip, shape, like=parameter)

    def _embedding(self, operator: Operator) -> bool:
        table, indices, *rest = operator.args
        if not (isinstance(table, Ref) and isinstance(indices, Ref)):
            return False
        if table.name in self.groups:
            return self._split_embedding(operator, table.name, indices.name)
        dim = self._choose(indices.name, range(len(self.graph.shape(indices.name))))
        if dim is None:
            return False
        return self._add(
            operator, dim, lambda chip: [self.whole(table, chip), Ref(self.graph.part(indices.name, dim, chip)), *rest]
        )

    def _split_embedding(self, operator: Operator, table: str, indices: str) -> bool:
        """Let each chip look up the indices that are among its rows, and give zeros for the others; then add these up.

        The first chip takes indices below its rows too, the last those above: they are wrong, and refused as ever.
        """
        graph, made, shape = self.graph, operator.outputs[0], self.graph.shape(indices)
        partial = [self._own_rows(operator, table, indices, chip) for chip in graph.chips]
        dim = graph.find_dim(made, range(len(shape)))
        if dim is None:
            graph.place(made, [graph.total(made, partial, chip, made) for chip in graph.chips])
            return True
        pieces = [graph.cut(name, dim, chip, len(graph.chips)) for chip, name in enumerate(partial)]
        graph.place(made, [graph.total(made, [own[chip] for own in pieces], chip, made) for chip in graph.chips], dim)
        return True

    def _own_rows(self, operator: Operator, table: str, indices: str, chip: int) -> str:
        """Look up what is among a chip's rows; zeros for all else."""
        graph, made, shape = self.graph, operator.outputs[0], self.graph.shape(indices)
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
        arguments = (Ref(self._rows(table, chip)), Ref(inside), own)
        full = (*shape, graph.shape(table)[1])
        found = graph.add_operator(operator.name, operator.op, arguments, chip, [full], made, of=operator)
        mask = graph.add_operator(
            name, "aten.unsqueeze.default", (Ref(outside), -1), chip, [(*shape, 1)], indices, "bool"
        )
        return graph.add_operator(
            name, "aten.masked_fill.Scalar", (Ref(found), Ref(mask), 0), chip, [full], made
        )  # fmt: skip

    def _matmul(self, operator: Operator) -> bool:
        """Split a product along a dimension of its result: of the batch, of the left rows, or of the right columns."""
        left, right = operator.args[:2]
        if not (isinstance(left, Ref) and isinstance(right, Ref)) or len(operator.args) > 2:
            return False
        shapes = [self.graph.shape(left.name), self.graph.shape(right.name)]
        dims = len(self.graph.shape(operator.outputs[0]))
        if min(map(len, shapes)) < 2:
            return False
        found = []
        for side, (operand, shape) in enumerate(zip((left, right), shapes, strict=True)):
            contracted = len(shape) - 1 - side
            dim = self._choose(operand.name, [d for d in range(len(shape)) if d != contracted])
            if dim is not None:
                found.append(dim + dims - len(shape))
        if not found:
            return False
        dim = min(found)
        return self._add(
            operator, dim,
            lambda chip: [
                self.whole(left, chip) if dim == dims - 1 else self._sliced(left, dim, dims, chip),
                self.whole(right, chip) if dim == dims - 2 else self._sliced(right, dim, dims, chip),
            ],
        )  # fmt: skip

    def _attention(self, operator: Operator) -> bool:
        """Split attention along samples or heads."""
        query, *others = operator.args
        dropout = operator.args[4] if len(operator.args) > 4 else operator.kwargs.get("dropout_p", 0.0)
        if not isinstance(query, Ref) or dropout != 0.0:
            return False
        dims = len(self.graph.shape(query.name))
        now = self.graph.dim_of.get(query.name)
        operands = [a.name for a in (query, *others[:2]) if isinstance(a, Ref)]
        even = [d for d in range(dims - 2) if all(self.graph.may_split(name, d, evenly=True) for name in operands)]
        if not even or not any(name in self.graph.dim_of for name in operands):
            return False
        dim = now if now in even and now is not None else even[0]
        return self._add(operator, dim, lambda chip: [self._sliced(a, dim, dims, chip) for a in operator.args])

    # -- views -------------------------------------------------------------------------------------------------------

    def _reshape(self, operator: Operator) -> bool:
        x, made = operator.args[0], operator.outputs[0]
        if not isinstance(x, Ref) or x.name not in self.graph.dim_of:
            return False
        shape, wanted, count = self.graph.shape(x.name), self.graph.shape(made), len(self.graph.chips)
        now = self.graph.dim_of[x.name]
        for dim in (now, *(d for d in range(len(shape)) if d != now)):
            target = reshaped_dim(shape, wanted, dim, count)
            if target is not None:
                return self._add(
                    operator, target,
                    lambda chip, dim=dim, target=target: [  # type: ignore[misc]
                        Ref(self.graph.part(x.name, dim, chip)), list(self._local(made, target, chip)),
                    ],
                    op="aten.reshape.default",
                )  # fmt: skip
        return False

    def _moved(self, operator: Operator, order: Sequence[int]) -> bool:
        """Split what puts the dimensions of its operand in another ``order``."""
        x = operator.args[0]
        if not isinstance(x, Ref) or x.name not in self.graph.dim_of:
            return False
        dim = self.graph.dim_of[x.name]
        return self._add(
            operator, list(order).index(dim), lambda chip: [Ref(self.graph.part(x.name, dim, chip)), *operator.args[1:]]
        )

    def _transpose(self, operator: Operator) -> bool:
        x, *swapped = operator.args
        dims = len(self.graph.shape(x.name)) if isinstance(x, Ref) else 0
        order = list(range(dims))
        first, second = (int(d) % dims for d in (swapped or (0, 1)))  # type: ignore[arg-type]
        order[first], order[second] = order[second], order[first]
        return self._moved(operator, order)

    def _permute(self, operator: Operator) -> bool:
        order = operator.args[1]
        return isinstance(order, list) and self._moved(operator, [int(d) % len(order) for d in order])  # type: ignore[arg-type]

    def _unsqueeze(self, operator: Operator) -> bool:
        x, place = operator.args[:2]
        if not isinstance(x, Ref) or x.name not in self.graph.dim_of or not isinstance(place, int):
            return False
        dim, dims = self.graph.dim_of[x.name], len(self.graph.shape(x.name)) + 1
        return self._add(
            operator, dim + (place % dims <= dim), lambda chip: [Ref(self.graph.part(x.name, dim, chip)), place]
        )

    def _expand(self, operator: Operator) -> bool:
        x, sizes = operator.args[:2]
        if not isinstance(x, Ref) or x.name not in self.graph.dim_of or not isinstance(sizes, list):
            return False
        dim = self.graph.dim_of[x.name]
        target = dim + len(sizes) - len(self.graph.shape(x.name))
        local = [-1 if position == target else size for position, size in enumerate(sizes)]
        return self._add(operator, target, lambda chip: [Ref(self.graph.part(x.name, dim, chip)), local])

    def _slice(self, operator: Operator) -> bool:
        x, along, *bounds = [*operator.args, *(0, None, None)[len(operator.args) - 1 :]]
        if not isinstance(x, Ref) or not isinstance(along, int):
            return False
        shape = self.graph.shape(x.name)
        keeps = self.graph.shape(operator.outputs[0])[along % len(shape)] == shape[along % len(shape)]
        dim = self._choose(x.name, [d for d in range(len(shape)) if d != along % len(shape) or keeps])
        if dim is None:
            return False
        if dim == along % len(shape):
            return self._add(operator, dim, lambda chip: [Ref(self.graph.part(x.name, dim, chip))], "aten.alias.default")
        return self._add(operator, dim, lambda chip: [Ref(self.graph.part(x.name, dim, chip)), along, *bounds])

    def _select(self, operator: Operator) -> bool:
        x, along, index = operator.args[:3]
        if not isinstance(x, Ref) or not isinstance(along, int):
            return False
        dims = len(self.graph.shape(x.name))
        dim = self._choose(x.name, [d for d in range(dims) if d != along % dims])
        if dim is None:
            return False
        return self._add(
            operator, dim - (along % dims < dim), lambda chip: [Ref(self.graph.part(x.name, dim, chip)), along, index]
        )

    def _chunks(self, operator: Operator) -> bool:
        x, how = operator.args[:2]
        if not isinstance(x, Ref):
            return False
        dims = len(self.graph.shape(x.name))
        given = operator.args[2] if len(operator.args) > 2 else operator.kwargs.get("dim", 0)
        along = int(given) % dims  # type: ignore[arg-type]
        now = self.graph.dim_of.get(x.name)
        groups = self._groups_of(x.name)
        if now == along and groups > 1 and groups == chunk_groups(operator, self.graph.shape(x.name)):
            count = len(operator.outputs)
            return self._add(
                operator, along,
                lambda chip: [
                    Ref(self.graph.part(x.name, along, chip)), count, along,
                ],
                op="aten.chunk.default",
            )  # fmt: skip
        dim = self._choose(x.name, [d for d in range(dims) if d != along])
        if dim is None:
            return False
        return self._add(
            operator, dim, lambda chip: [Ref(self.graph.part(x.name, dim, chip)), how, along], op=operator.op
        )

    def _groups_of(self, name: str) -> int:
        """Return the groups of a linear layer's features; 0 for any other value."""
        maker = self.graph.source.producers().get(name)
        weight = maker.args[1] if maker is not None and maker.op_type == "linear" else None
        return self.groups.get(weight.name, 0) if isinstance(weight, Ref) else 0

    def _cat(self, operator: Operator) -> bool:
        items = operator.args[0]
        along = operator.args[1] if len(operator.args) > 1 else operator.kwargs.get("dim", 0)
        if not isinstance(items, list) or not isinstance(along, int):
            return False
        dims = len(self.graph.shape(operator.outputs[0]))
        found = [
            dim for item in items if isinstance(item, Ref) and len(self.graph.shape(item.name)) == dims
            and (dim := self._choose(item.name, [d for d in range(dims) if d != along % dims])) is not None
        ]  # fmt: skip
        if not found or any(isinstance(i, Ref) and len(self.graph.shape(i.name)) != dims for i in items):
            return False
        dim = min(found)
        return self._add(operator, dim, lambda chip: [self._sliced(items, dim, dims, chip), along], op=operator.op)

    # -- sums --------------------------------------------------------------------------------------------------------

    def _partial(self, operator: Operator, parts: Sequence[str], count: int | str | None) -> bool:
        """Add up what the chips made, on the first chip, and divide by ``count``: a number, or a value there."""
        graph, made = self.graph, operator.outputs[0]
        total = graph.total(made, parts, 0, made)
        args: list[Argument] = [Ref(total), *([] if count is None else [Ref(count) if isinstance(count, str) else count])]
        op = "aten.alias.default" if count is None else "aten.div.Tensor"
        outputs = graph.add_copy(operator, 0, args, [graph.shape(made)], {}, is_original=True, op=op)
        graph.place(made, outputs * len(graph.chips), owner=0)
        return True

    def _reduce(self, operator: Operator) -> bool:
        """Split a sum or mean over all elements, or over dimensions that are not split."""
        x = operator.args[0]
        if not isinstance(x, Ref) or x.name not in self.graph.dim_of:
            return False
        shape, made = self.graph.shape(x.name), operator.outputs[0]
        given = operator.args[1] if len(operator.args) > 1 else operator.kwargs.get("dim")
        along = {int(d) % len(shape) for d in (given if isinstance(given, list) else [given]) if isinstance(d, int)}
        keepdim = bool(operator.args[2] if len(operator.args) > 2 else operator.kwargs.get("keepdim", False))
        if not along:
            if operator.kwargs or self.graph.shape(made) or operator.op_type not in {"sum", "mean"}:
                return False
            dim = self.graph.dim_of[x.name]
            op = "aten.sum.default"
            parts = [
                self.graph.add_operator(made, op, (Ref(self.graph.part(x.name, dim, chip)),), chip, [()], made)
                for chip in self.graph.chips
            ]
            return self._partial(operator, parts, prod(shape) if operator.op_type == "mean" else None)
        dim = self._choose(x.name, [d for d in range(len(shape)) if d not in along])
        if dim is None or any(isinstance(v, Ref) for v in operator.kwargs.values()):
            return False
        target = dim if keepdim else dim - sum(d < dim for d in along)
        return self._add(operator, target, lambda chip: [Ref(self.graph.part(x.name, dim, chip)), *operator.args[1:]])

    def _pair_loss(self, operator: Operator) -> bool:
        x, target = operator.args[:2]
        place = _PAIR_LOSSES[operator.op_type]
        reduction = operator.args[place] if len(operator.args) > place else _MEAN
        if not (isinstance(x, Ref) and isinstance(target, Ref)) or operator.kwargs:
            return False
        shape = self.graph.shape(x.name)
        dim = self.graph.dim_of.get(x.name, self.graph.dim_of.get(target.name))
        if dim is None or self.graph.shape(target.name) != shape:
            return False
        rest = operator.args[place + 1 :]
        if reduction == _NONE:
            return self._pointwise(operator)
        parts = self._losses(operator, lambda chip: [
            Ref(self.graph.part(x.name, dim, chip)), Ref(self.graph.part(target.name, dim, chip)), _SUM, *rest,
        ])  # fmt: skip
        return self._partial(operator, parts, prod(shape) if reduction == _MEAN else None)

    def _cross_entropy(self, operator: Operator) -> bool:
        """Split over samples: each chip sums up its own losses, and counts them where the mean needs it."""
        x, target, weight, reduction, ignored, *rest = [*operator.args, *(None, _MEAN, -100)[len(operator.args) - 2 :]]
        if not (isinstance(x, Ref) and isinstance(target, Ref)) or weight is not None or operator.kwargs:
            return False
        shape = self.graph.shape(x.name)
        dim = self._choose(x.name, [d for d in range(len(shape)) if d != 1]) if len(shape) > 1 else None
        if dim is None or len(self.graph.shape(target.name)) != len(shape) - 1 or dim:
            return False

        def args_of(chip: int) -> list[Argument]:
            slices: list[Argument] = [Ref(self.graph.part(name, 0, chip)) for name in (x.name, target.name)]
            return [*slices, None, _NONE if reduction == _NONE else _SUM, ignored, *rest]

        if reduction == _NONE:
            return self._add(operator, 0, args_of)
        parts = self._losses(operator, args_of)
        return self._partial(operator, parts, self._count(operator, target.name, ignored) if reduction == _MEAN else None)

    def _losses(self, operator: Operator, args_of: Callable[[int], Sequence[Argument]]) -> list[str]:
        made = operator.outputs[0]
        return [
            self.graph.add_operator(made, operator.op, args_of(chip), chip, [()], made, of=operator)
            for chip in self.graph.chips
        ]

    def _count(self, operator: Operator, target: str, ignored: Argument) -> str:
        """Count the targets that are not ``ignored``: each chip its own, added up on the first."""
        name, made, counts = f"{operator.name}__count", operator.outputs[0], []
        for chip in self.graph.chips:
            part = self.graph.part(target, 0, chip)
            shapes = [self._local(target, 0, chip)]
            seen = self.graph.add_operator(name, "aten.ne.Scalar", (Ref(part), ignored), chip, shapes, made, "bool")
            counts.append(self.graph.add_operator(name, "aten.sum.default", (Ref(seen),), chip, [()], made, "int64"))
        return self.graph.total(name, counts, 0, counts[0])


def reshaped_dim(shape: Sequence[int], wanted: Sequence[int], dim: int, count: int) -> int | None:
    """Return the dimension of ``wanted`` whose ``count`` equal slices have the elements of those of ``dim``, or None.

    Both shapes are of the same elements in the same order.
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
    given = operator.args[2] if len(operator.args) > 2 else operator.kwargs.get("dim", 0)
    count = len(operator.outputs)
    if not isinstance(given, int) or given % len(shape) != len(shape) - 1 or count < 2 or shape[-1] % count:
        return 0
    how, size = operator.args[1], shape[-1] // count
    is_equal = {
        "chunk": how == count, "split": how == size or how == [size] * count, "split_with_sizes": how == [size] * count
    }  # fmt: skip
    return count if is_equal[operator.op_type] else 0


def _is_pointwise(op: str) -> bool:
    tags = getattr(callable_of(op), "tags", ())
    return torch.Tag.pointwise in tags and torch.Tag.nondeterministic_seeded not in tags


_RULES: Final[dict[str, Callable[[Rules, Operator], bool]]] = {
    **dict.fromkeys(("layer_norm", "rms_norm"), Rules._but_last),
    **dict.fromkeys(("softmax", "log_softmax", "_softmax", "_log_softmax", "cumsum"), Rules._along),
    **dict.fromkeys(("matmul", "bmm", "mm"), Rules._matmul),
    **dict.fromkeys(("view", "reshape", "flatten", "unflatten", "_unsafe_view"), Rules._reshape),
    **dict.fromkeys(("chunk", "split", "split_with_sizes"), Rules._chunks),
    **dict.fromkeys(("sum", "mean", "amax", "amin"), Rules._reduce),
    **dict.fromkeys(_PAIR_LOSSES, Rules._pair_loss),
    "linear": Rules._linear, "embedding": Rules._embedding, "scaled_dot_product_attention": Rules._attention,
    "transpose": Rules._transpose, "t": Rules._transpose, "permute": Rules._permute, "unsqueeze": Rules._unsqueeze,
    "expand": Rules._expand, "slice": Rules._slice, "select": Rules._select, "cat": Rules._cat,
    "cross_entropy_loss": Rules._cross_entropy,
}  # fmt: skip
