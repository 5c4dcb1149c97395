"""The rule of operators that compute element by element."""

from typing import Final

import torch

from rdukit_compiler.chips.operands import Operands
from rdukit_compiler.ir import Operator
from rdukit_compiler.operators.naming import callable_of
from rdukit_compiler.operators.vocabulary import CASTS

#: Elementwise operators that torch does not mark as such.
_BY_PLACE: Final = CASTS | {
    "alias", "detach", "contiguous", "clone", "zeros_like", "ones_like", "full_like", "expand_as"
}  # fmt: skip


def split_elements(given: Operands, operator: Operator) -> bool:
    """Split along the first of the dimensions along which operands are split."""
    shape = given.graph.shape(operator.outputs[0])
    found = []
    for name in operator.inputs:
        dim = given.graph.dim_of.get(name)
        if dim is not None:
            found.append(dim + len(shape) - len(given.graph.shape(name)))
    if not found or len(operator.outputs) > 1:
        return False
    dim = min(found)
    return given.add(operator, dim, lambda chip: [given.sliced(a, dim, len(shape), chip) for a in operator.args])


def is_by_element(operator: Operator) -> bool:
    """Return whether each element of the result depends only on the operands' elements at its position, and not on
    random numbers.
    """
    tags = getattr(callable_of(operator.op), "tags", ())
    is_marked = torch.Tag.pointwise in tags and torch.Tag.nondeterministic_seeded not in tags
    return operator.op_type in _BY_PLACE or is_marked
