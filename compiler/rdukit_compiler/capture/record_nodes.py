"""Nodes of a record: keys of their metadata, in addition to torch's own, and queries about their calls and memory."""

import contextlib
from collections.abc import Iterator
from itertools import islice
from typing import Final

import torch
from torch import fx

from rdukit_compiler.torch_private import OpOverload

#: Path of the innermost module that was running, and active directives.
MODULE_META: Final = "rdukit_module"
LABELS_META: Final = "rdukit_labels"
#: The call was made while gradients were off: no gradient flows through it.
NO_GRAD_META: Final = "rdukit_no_grad"
#: The call belongs to the backward of the custom function with this number.
BACKWARD_META: Final = "rdukit_backward"

#: An attribute of the record is a tensor that autograd keeps for a gradient and follows.
FOLLOWED_META: Final = "rdukit_followed"

#: The program named the dtype, as in ``x.float()``.
NAMED_META: Final = "rdukit_named_dtype"
#: A loss function made the call: see ``record``.
LOSS_META: Final = "rdukit_loss"
#: The constant tensor that a placeholder stands for; forward may read its values.
FIXED_META: Final = "rdukit_fixed"
#: The example values of a placeholder for an input or a buffer of a checkpoint. Forward may read them; each run checks
#: that they are the same.
EXAMPLE_META: Final = "rdukit_example"
#: Forward has read the values.
READ_META: Final = "rdukit_read"
#: Key of the graph's metadata: modules in which the program looked up the dtype of a float32 tensor.
DTYPE_READERS_META: Final = "rdukit_dtype_readers"

#: Operators, other than dropouts, that may return the tensor itself, with its gradient, also while gradients are off.
_IDENTITIES: Final = frozenset(
    "to type_as contiguous positive flatten sum_to_size real conj conj_physical resolve_conj resolve_neg atleast_1d "
    "atleast_2d atleast_3d adjoint to_dense dequantize".split()
)


@contextlib.contextmanager
def marked(graph: fx.Graph, key: str, value: object) -> Iterator[None]:
    """Set ``meta[key] = value`` on every node that is recorded inside this block, unless it has the key."""
    before = len(graph.nodes)
    try:
        yield
    finally:
        for node in islice(reversed(graph.nodes), len(graph.nodes) - before):
            node.meta.setdefault(key, value)


def memory_of(node: fx.Node) -> int | None:
    """Return a key that identifies the memory of a node's tensor; None if the node is not a tensor."""
    value = node.meta.get("val")
    return value.untyped_storage()._cdata if isinstance(value, torch.Tensor) else None


def shares_memory(node: fx.Node, other: fx.Node) -> bool:
    """Return whether two nodes are tensors over the same memory."""
    return (memory := memory_of(node)) is not None and memory == memory_of(other)


def module_of(node: fx.Node) -> str:
    return str(node.meta.get(MODULE_META) or "forward")


def returns_nothing(node: fx.Node) -> bool:
    """Return whether an operator has only effects and no result, such as one that overwrites a list of tensors."""
    return isinstance(node.target, OpOverload) and not node.target._schema.returns


def turns_a_tensor(node: fx.Node) -> bool:
    """Return whether an in-place operator changes only its tensor's view of memory, such as ``unsqueeze_``, and no
    number.
    """
    return isinstance(node.target, OpOverload) and torch.Tag.inplace_view in node.target.tags


def gives_itself(node: fx.Node) -> bool:
    """Return whether torch returns the call's operand itself, such as for ``x.float()`` of a float32 tensor."""
    if not isinstance(node.target, OpOverload) or not node.args or not isinstance(node.args[0], fx.Node):
        return False
    made, given, name = node.meta.get("val"), node.args[0].meta.get("val"), node.target._schema.name
    if name.endswith("dropout") and len(node.args) == 3:
        return bool(node.args[1] == 0) or node.args[2] is False
    if name.removeprefix("aten::") not in _IDENTITIES:
        return False
    if not isinstance(made, torch.Tensor) or not isinstance(given, torch.Tensor):
        return False
    is_alike = made.dtype == given.dtype and made.shape == given.shape and made.stride() == given.stride()
    return is_alike and shares_memory(node, node.args[0])
