"""Who reads a traced tensor: ``tensor.dsts``. Source: SDK reference 5; a program may rewire a graph through them."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from rdukit.errors import CompileError
from rdukit.pef.kernel import rename_references
from rdukit_compiler.ir import Operator, Value
from sambaflow.samba.sambatensor import SambaTensor


@dataclass(slots=True)
class Consumer:
    """An operator that reads traced tensors.

    ``inputs`` may be changed in place, to other traced tensors of the same shape and dtype: graphs that are cut
    afterwards follow.
    """

    name: str
    op_type: str
    inputs: list[SambaTensor]
    #: Names of ``inputs`` when the operator was traced.
    before: tuple[str, ...] = field(repr=False)


def consumer_of(operator: Operator, tensor_of: Callable[[str], SambaTensor]) -> Consumer:
    """The program's view of an operator; ``tensor_of`` gives the handle of a value."""
    return Consumer(operator.name, operator.op_type, [tensor_of(n) for n in operator.inputs], operator.inputs)


def rewired(
    operators: Iterable[Operator], consumers: Iterable[Consumer], values: Mapping[str, Value]
) -> list[Operator]:
    """``operators`` with the inputs that the program has given their consumers since.

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
                    f"operator {consumer.name!r}: {new!r} {found}; legal in place of {old!r}: a traced tensor that is "
                    f"{ours.dtype}{list(ours.shape)}"
                )
            changes.setdefault(consumer.name, {})[old] = new
    return [_with_inputs(o, changes[o.name]) if o.name in changes else o for o in operators]


def _with_inputs(operator: Operator, new: Mapping[str, str]) -> Operator:
    return replace(
        operator,
        args=tuple(rename_references(argument, new) for argument in operator.args),
        kwargs={key: rename_references(argument, new) for key, argument in operator.kwargs.items()},
    )
