"""Rewrite a graph for several chips: each chip has its own operators and values.

A value of the graph lies in one of these layouts: whole on every chip, whole on one chip, or split along one dimension,
a slice on each chip. ``SplitGraph`` provides each chip the layout that it needs, and adds operators for it. A chip that
needs a whole value reads and joins the others' slices; a chip that needs another slice reads pieces of all. Links only
serve reads from other chips, so traffic follows from the chips of the values (``rdukit.pef.chips``).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from rdukit.pef.kernel import Argument, Ref
from rdukit.pef.model import Dtype
from rdukit_compiler.ir import ChipPiece, ModelGraph, Operator, Value, ValueKind
from rdukit_compiler.operators.naming import dtype_name
from rdukit_compiler.operators.supported import is_guard
from rdukit_compiler.passes.assign_precision import Precision

#: Dimension that means the whole value.
WHOLE: Final = None


def slice_sizes(size: int, chips: int) -> tuple[int, ...]:
    """Return the sizes of the slices of a dimension: as equal as can be, larger ones first."""
    least, rest = divmod(size, chips)
    return tuple(least + (chip < rest) for chip in range(chips))


class SplitGraph:
    """The written graph, and the location in it of each value of the original graph.

    Args:
        graph: with the device's dtypes. chips: two or more. precision: the dtype in which operators read the device's
            tensors.
    """

    def __init__(self, graph: ModelGraph, chips: int, precision: Precision) -> None:
        self.source = graph
        self._precision = precision
        self.chips: Final = range(chips)
        self.values: dict[str, Value] = {v.name: v for v in graph.values.values() if v.kind is not ValueKind.OPERATOR}
        self.operators: list[Operator] = []
        self.pieces: dict[str, ChipPiece] = {}
        #: Value of the original graph → its split dimension; absent if it is whole.
        self.dim_of: dict[str, int] = {}
        #: Value of the original graph → its name on each chip: the slice there, or the whole.
        self._on_chip: dict[str, tuple[str, ...]] = {name: (name,) * chips for name in self.values}
        #: Value that is whole on one chip → that chip.
        self._owner: dict[str, int] = {}
        #: Joined and cut values that exist already, by their description.
        self._made: dict[tuple[object, ...], tuple[str, ...]] = {}
        #: Operators that every chip computes whole although an operand is split, with the reason.
        self.replicated: dict[str, str] = {}

    # -- queries of rules --------------------------------------------------------------------------------------------

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the whole shape of a value of the original graph."""
        return self.source.values[name].shape

    def sizes(self, name: str, dim: int) -> tuple[int, ...]:
        """Return the sizes of its slices along ``dim``."""
        return slice_sizes(self.shape(name)[dim], len(self.chips))

    def may_split(self, name: str, dim: int, *, evenly: bool = False) -> bool:
        """Return whether each chip would get a slice of ``dim``; ``evenly``: of equal size."""
        size = self.shape(name)[dim]
        return size >= len(self.chips) and not (evenly and size % len(self.chips))

    def find_dim(self, name: str, dims: Sequence[int]) -> int | None:
        """Return the first of ``dims`` that splits evenly, else the first that splits at all, else None."""
        even = [dim for dim in dims if self.may_split(name, dim, evenly=True)]
        return next(iter(even or [dim for dim in dims if self.may_split(name, dim)]), None)

    def whole(self, name: str, chip: int) -> str:
        """Return the name of the whole value for ``chip``, which is joined there if it is split."""
        if name not in self.dim_of:
            return self._on_chip[name][chip]
        return self._joined(name, chip, self._on_chip[name], self.dim_of[name], self.shape(name))

    def part(self, name: str, dim: int, chip: int) -> str:
        """Return the name of the slice along ``dim`` for ``chip``, for any layout of the value."""
        now, names = self.dim_of.get(name), self._on_chip[name]
        if now == dim:
            return names[chip]
        local = (*self.shape(name)[:dim], self.sizes(name, dim)[chip], *self.shape(name)[dim + 1 :])
        if now is not None:
            received = tuple(self.cut(names[other], dim, other, len(self.chips))[chip] for other in self.chips)
            return self._joined(name, chip, received, now, local)
        if name in self._owner:
            return self.cut(names[chip], dim, self._owner[name], len(self.chips))[chip]
        key = ("slice", names[chip], dim, chip)
        if key not in self._made:
            start = sum(self.sizes(name, dim)[:chip])
            arguments = (Ref(names[chip]), dim, start, start + local[dim])
            self._made[key] = (
                self.add_operator(f"{name}__slice", "aten.slice.Tensor", arguments, chip, [local], like=name),
            )
        return self._made[key][0]

    def cut(self, name: str, dim: int, chip: int, count: int) -> tuple[str, ...]:
        """Return the names of ``count`` slices of a value of this graph, cut on ``chip``."""
        key = ("cut", name, dim, chip)
        if key not in self._made:
            value = self._as_read(self.values[name])
            sizes = slice_sizes(value.shape[dim], count)
            shapes = [(*value.shape[:dim], size, *value.shape[dim + 1 :]) for size in sizes]
            operator = f"{name}__cut{dim}"
            outputs = tuple(f"{operator}_{number}" for number in range(count))
            for output, shape in zip(outputs, shapes, strict=True):
                self.values[output] = replace(value, name=output, kind=ValueKind.OPERATOR, shape=shape)
            arguments: tuple[Argument, ...] = (Ref(name), list(sizes), dim)
            self.operators.append(
                Operator(
                    operator, "aten.split_with_sizes.default", "split_with_sizes", arguments, {}, outputs, chip=chip
                )
            )
            self._made[key] = outputs
        return self._made[key]

    def _joined(self, name: str, chip: int, parts: tuple[str, ...], dim: int, shape: tuple[int, ...]) -> str:
        key = ("join", parts, dim, chip)
        if key not in self._made:
            self._made[key] = (self.join(f"{name}__joined", parts, dim, chip, shape, like=name),)
        return self._made[key][0]

    def join(
        self, name: str, parts: Sequence[str], dim: int, chip: int, shape: tuple[int, ...], like: str
    ) -> str:  # fmt: skip
        """Add a concatenation on ``chip``; returns the name of the value."""
        return self.add_operator(
            name, "aten.cat.default", ([Ref(part) for part in parts], dim), chip, [shape], like=like
        )

    def total(self, name: str, parts: Sequence[str], chip: int, like: str) -> str:
        """Add the ``parts`` up on ``chip``, in the given order; returns the name of the sum."""
        summed = parts[0]
        for part in parts[1:]:
            shape = self.values[summed].shape
            summed = self.add_operator(f"{name}__sum", "aten.add.Tensor", (Ref(summed), Ref(part)), chip, [shape], like)
        return summed

    # -- additions of rules ------------------------------------------------------------------------------------------

    def add_operator(
        self, name: str, op: str, args: Sequence[Argument], chip: int, shapes: Sequence[tuple[int, ...]], like: str,
        dtype: Dtype | None = None, of: Operator | None = None,
    ) -> str:  # fmt: skip
        """Add an operator of this pass on ``chip``; returns the name of its first output.

        Args:
            like: a value of either graph, whose dtype and differentiability the outputs get. dtype: dtype of the
                outputs instead, without a gradient. of: the operator that this one is a part of, and in whose dtypes it
                computes.
        """
        model = self._as_read(self.source.values[like] if like in self.source.values else self.values[like])
        operator = self._free(f"{name}__chip{chip}")
        outputs = tuple(operator if not number else f"{operator}_{number}" for number in range(len(shapes)))
        for output, shape in zip(outputs, shapes, strict=True):
            value = replace(model, name=output, kind=ValueKind.OPERATOR, shape=shape, is_exact=False)
            self.values[output] = value if dtype is None else replace(value, dtype=dtype, requires_grad=False)
        made = Operator(operator, op, op.split(".")[1], tuple(args), {}, outputs, chip=chip)
        if of is not None:
            made = replace(made, compute=of.compute, module=of.module, is_of_loss=of.is_of_loss)
        self.operators.append(made)
        return outputs[0]

    def add_copy(
        self, operator: Operator, chip: int, args: Sequence[Argument], shapes: Sequence[tuple[int, ...]],
        kwargs: Mapping[str, Argument] | None = None, *, is_original: bool = False, op: str | None = None,
    ) -> tuple[str, ...]:  # fmt: skip
        """Add ``operator`` as ``chip`` computes it; returns the names of its outputs there.

        Args:
            shapes: of its outputs there. is_original: keep the names of the original graph. op: ATen name instead of
                its own.
        """
        suffix = "" if is_original else f"__chip{chip}"
        outputs = tuple(f"{name}{suffix}" for name in operator.outputs)
        for original, output, shape in zip(operator.outputs, outputs, shapes, strict=True):
            self.values[output] = replace(self.source.values[original], name=output, shape=shape)
        changed = replace(
            operator, name=f"{operator.name}{suffix}", args=tuple(args), outputs=outputs, chip=chip,
            kwargs=operator.kwargs if kwargs is None else kwargs,
        )  # fmt: skip
        self.operators.append(changed if op is None else replace(changed, op=op, op_type=op.split(".")[1]))
        return outputs

    def add_piece(self, parent: str, number: int, chip: int, start: int, rows: int) -> str:
        """Add rows of a parameter or input, held by ``chip``, as a separate value; return its name."""
        name = f"{parent}__chip{chip}" + (f"_{number}" if number else "")
        if name not in self.values:
            held = self.source.values[parent]
            self.values[name] = replace(held, name=name, shape=(rows, *held.shape[1:]))
            self.pieces[name] = ChipPiece(parent, start, chip)
        return name

    def place(self, name: str, on_chip: Sequence[str], dim: int | None = WHOLE, owner: int | None = None) -> None:
        """Record where a value of the original graph is: its name on each chip, and its layout."""
        self._on_chip[name] = tuple(on_chip)
        if dim is not None:
            self.dim_of[name] = dim
        if owner is not None:
            self._owner[name] = owner

    def _as_read(self, value: Value) -> Value:
        """Return a value with the dtype in which operators read it."""
        if value.kind is ValueKind.OPERATOR:
            return value
        return replace(value, dtype=dtype_name(self._precision.compute_dtype(value)))

    def _free(self, name: str) -> str:
        if name not in self.values:
            return name
        number = 1
        while f"{name}_{number}" in self.values:
            number += 1
        return f"{name}_{number}"

    # -- the end -----------------------------------------------------------------------------------------------------

    def finish(self) -> ModelGraph:
        """Join the program's outputs on the host, drop unread operators, and return the graph."""
        for name in dict.fromkeys(self.source.outputs):
            if name in self.dim_of and self.source.values[name].kind is ValueKind.OPERATOR:
                maker = self.source.producers().get(name)
                parts: list[Argument] = [Ref(part) for part in self._on_chip[name]]
                self.values[name] = self.source.values[name]
                kind = maker.op_type if maker is not None else "cat"
                self.operators.append(
                    Operator(f"{name}__output", "aten.cat.default", kind, (parts, self.dim_of[name]), {}, (name,),
                             chip=HOST_CHIP)
                )  # fmt: skip
        return _without_unread(
            replace(
                self.source, values=self.values, operators=tuple(self.operators), pieces=self.pieces,
                chips=len(self.chips), replicated=self.replicated,
            )
        )  # fmt: skip


#: Chip number of the host, which joins the values that a program reads.
HOST_CHIP: Final = -1


def _without_unread(graph: ModelGraph) -> ModelGraph:
    """Return the graph without operators whose results are unread, such as a loss on all chips but one."""
    needed = {*graph.outputs, *graph.updates.values()}
    kept: list[Operator] = []
    originals: set[str] = set()
    for operator in reversed(graph.operators):
        if needed.isdisjoint(operator.outputs) and not is_guard(operator):
            continue
        needed.update(operator.inputs)
        kept.append(operator)
        originals.update(operator.outputs)
    values = {
        name: value for name, value in graph.values.items() if value.kind is not ValueKind.OPERATOR or name in originals
    }
    return replace(graph, values=values, operators=tuple(reversed(kept)))
