"""Where in the order of operators a buffer gets its new value: as soon as nothing reads the old one.

A copy that makes a buffer's new value a value of its own would otherwise come last in forward, far from the operator
that computed it: in another section, to which the whole buffer would have to be handed.
"""

from collections.abc import Mapping, Sequence

from rdukit_compiler.cost.work import VIEW_OPS
from rdukit_compiler.ir import Operator


def move_copies(operators: Sequence[Operator], updates: Mapping[str, str]) -> tuple[Operator, ...]:
    """The operators, copies that only make buffers' new values behind the operator that computed the value.

    A copy stays where it is if an operator in between reads the buffer's old value, or a view of it.

    Args:
        updates: buffer → the value that forward leaves in it.
    """
    makers = {output: operator for operator in operators for output in operator.outputs}
    position = {operator.name: number for number, operator in enumerate(operators)}
    behind: dict[str, list[Operator]] = {}
    moved: set[str] = set()
    for buffer, value in updates.items():
        copy = makers.get(value)
        maker = makers.get(copy.inputs[0]) if copy is not None and copy.op == "aten.clone.default" else None
        if copy is None or maker is None or reads_after(operators[position[maker.name] + 1 :], operators, buffer):
            continue
        behind.setdefault(maker.name, []).append(copy)
        moved.add(copy.name)
    made: list[Operator] = []
    for operator in operators:
        if operator.name not in moved:
            made.extend([operator, *behind.get(operator.name, ())])
    return tuple(made)


def reads_after(later: Sequence[Operator], operators: Sequence[Operator], buffer: str) -> bool:
    """Whether one of ``later`` reads the buffer as it was, or through a view."""
    old = views_of(buffer, operators)
    return any(old.intersection(operator.inputs) for operator in later)


def views_of(value: str, operators: Sequence[Operator]) -> set[str]:
    """``value``, and what ``operators``, in graph order, make of it that may show the same memory."""
    found = {value}
    for operator in operators:
        if operator.op_type in VIEW_OPS and operator.inputs and operator.inputs[0] in found:
            found.update(operator.outputs)
    return found


__all__ = ["move_copies", "reads_after", "views_of"]
