"""Marks on the nodes of a record, beside torch's own metadata: what the program had switched on, and whose they are."""

import contextlib
from collections.abc import Iterator
from itertools import islice
from typing import Final

from torch import fx

#: The call was made while gradients were off: no gradient flows through it.
NO_GRAD_META: Final = "rdukit_no_grad"
#: The call belongs to the backward of the custom function with this number.
BACKWARD_META: Final = "rdukit_backward"

#: An attribute of the record is a tensor that autograd keeps for a gradient, and follows itself.
FOLLOWED_META: Final = "rdukit_followed"


@contextlib.contextmanager
def marked(graph: fx.Graph, key: str, value: object) -> Iterator[None]:
    """Give every node that is recorded inside this block ``meta[key] = value``, unless it has one."""
    before = len(graph.nodes)
    try:
        yield
    finally:
        for node in islice(reversed(graph.nodes), len(graph.nodes) - before):
            node.meta.setdefault(key, value)
