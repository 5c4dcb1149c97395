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

#: The program named the dtype, in ``x.float()``.
NAMED_META: Final = "rdukit_named_dtype"
#: A loss function made the call: see ``record``.
LOSS_META: Final = "rdukit_loss"
#: A placeholder stands for a tensor that never changes, whose values forward may look at: that tensor.
FIXED_META: Final = "rdukit_fixed"
#: A placeholder stands for an input, or a buffer of a checkpoint, whose values at the trace forward may look at, each
#: run being checked: those values.
EXAMPLE_META: Final = "rdukit_example"
#: It has looked.
READ_META: Final = "rdukit_read"
#: Of the whole record: modules in which the program looked up the dtype of a float32 tensor.
DTYPE_READERS_META: Final = "rdukit_dtype_readers"


@contextlib.contextmanager
def marked(graph: fx.Graph, key: str, value: object) -> Iterator[None]:
    """Give every node that is recorded inside this block ``meta[key] = value``, unless it has one."""
    before = len(graph.nodes)
    try:
        yield
    finally:
        for node in islice(reversed(graph.nodes), len(graph.nodes) - before):
            node.meta.setdefault(key, value)
