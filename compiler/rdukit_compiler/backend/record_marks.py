"""Marks on the nodes of a record, beside torch's own metadata: what the program had switched on, and whose they are."""

import contextlib
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

import torch
from torch import fx

#: The call was made while gradients were off: no gradient flows through it.
NO_GRAD_META: Final = "rdukit_no_grad"
#: The call belongs to the backward of the custom function with this number.
BACKWARD_META: Final = "rdukit_backward"

#: Whether a gradient may flow through what the call made; known once somebody has asked.
CARRIES_META: Final = "rdukit_carries"
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


def carries_gradient(node: fx.Node, followed: Sequence[bool]) -> bool:
    """Whether a gradient may flow from ``node`` to an input of the record that requires one.

    Args:
        followed: which of the record's placeholders stand for tensors that require a gradient.
    """
    pending = [node]
    while pending:
        current = pending[-1]
        if CARRIES_META in current.meta:
            pending.pop()
            continue
        if (known := _carries(current, followed)) is None:
            unknown = [n for n in current.all_input_nodes if CARRIES_META not in n.meta]
            if unknown:
                pending.extend(unknown)
                continue
            known = any(n.meta[CARRIES_META] for n in current.all_input_nodes)
        current.meta[CARRIES_META] = known
        pending.pop()
    found: bool = node.meta[CARRIES_META]
    return found


def _carries(node: fx.Node, followed: Sequence[bool]) -> bool | None:
    """What is known without looking at what ``node`` reads; None if that decides."""
    value = node.meta.get("val")
    if node.op == "placeholder":
        place = next(i for i, n in enumerate(node.graph.nodes) if n is node)
        return place < len(followed) and followed[place]
    if node.op != "call_function":
        return False
    if NO_GRAD_META in node.meta or str(node.target) == "aten.detach.default":
        return False
    if isinstance(value, torch.Tensor) and not (value.is_floating_point() or value.is_complex()):
        return False
    return None
