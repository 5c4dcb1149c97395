"""Operands of an operator as each chip reads them; the rules of operators use these functions."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rdukit.pef.kernel import Argument, Ref
from rdukit_compiler.chips.splitter import SplitGraph
from rdukit_compiler.ir import Operator


def argument_of(operator: Operator, place: int, name: str, default: Argument = None) -> Argument:
    """Return an operator's argument, which may be positional or a keyword."""
    return operator.args[place] if len(operator.args) > place else operator.kwargs.get(name, default)


@dataclass(slots=True)
class Operands:
    """Tools of the rules, for one graph.

    Args:
        graph: the graph that is written. groups: parameter whose rows are split → number of blocks of rows, each of
            which is split.
    """

    graph: SplitGraph
    groups: dict[str, int] = field(default_factory=dict)

    def whole(self, argument: Any, chip: int) -> Any:
        """Return an argument whose references are replaced by whole values."""
        if isinstance(argument, list):
            return [self.whole(item, chip) for item in argument]
        return Ref(self.graph.whole(argument.name, chip)) if isinstance(argument, Ref) else argument

    def sliced(self, argument: Argument, dim: int, dims: int, chip: int) -> Argument:
        """Return an operand's slice along dimension ``dim`` of a result of ``dims``; the whole where it is broadcast.

        Items of a list are sliced separately.
        """
        if isinstance(argument, list):
            return [self.sliced(item, dim, dims, chip) for item in argument]
        if not isinstance(argument, Ref):
            return argument
        shape = self.graph.shape(argument.name)
        own = dim - (dims - len(shape))
        if own < 0 or shape[own] == 1:
            return Ref(self.graph.whole(argument.name, chip))
        return Ref(self.graph.part(argument.name, own, chip))

    def local(self, name: str, dim: int, chip: int) -> tuple[int, ...]:
        shape = self.graph.shape(name)
        return (*shape[:dim], self.graph.sizes(name, dim)[chip], *shape[dim + 1 :])

    def add(
        self, operator: Operator, dim: int, args_of: Callable[[int], Sequence[Argument]], op: str | None = None
    ) -> bool:  # fmt: skip
        """Add a copy for each chip whose outputs are slices along ``dim``."""
        made = []
        for chip in self.graph.chips:
            kwargs = {key: self.sliced(v, dim, len(self.graph.shape(operator.outputs[0])), chip)
                      for key, v in operator.kwargs.items()}  # fmt: skip
            shapes = [self.local(name, dim, chip) for name in operator.outputs]
            args = tuple(args_of(chip))
            made.append(self.graph.add_copy(operator, chip, args, shapes, {} if op else kwargs, op=op))
        for position, name in enumerate(operator.outputs):
            self.graph.place(name, [outputs[position] for outputs in made], dim)
        return True

    def choose(self, name: str, legal: Sequence[int]) -> int | None:
        """Return the dimension along which to split an operand: its present one if possible, otherwise another."""
        now = self.graph.dim_of.get(name)
        if now is None or now in legal:
            return now
        return self.graph.find_dim(name, legal)
