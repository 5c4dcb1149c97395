"""Calls that autograd follows while they are recorded, because forward asks for a gradient itself.

Autograd keeps tensors of the parts of a composite operator, which a record of the whole does not have: such a call is
recorded as its parts. Source: ours.
"""

from functools import cache
from typing import Any, Final

import torch

#: Operators of which the record needs the whole: they update statistics, a run may change their rate, what they were
#: called with decides about precision, or they look at values.
_WHOLE: Final = frozenset({
    "aten::batch_norm", "aten::instance_norm", "aten::dropout", "aten::feature_dropout", "aten::to", "aten::type_as",
    "aten::ctc_loss", "aten::is_nonzero", "aten::item", "aten::data", "aten::set_data",
})  # fmt: skip

#: Operators that autograd calls, whose last argument says which of the gradients are wanted. A graph has no results
#: that are None: it computes all, and what nobody reads is left out later.
MASKED: Final = frozenset({
    torch.ops.aten.convolution_backward.default, torch.ops.aten.native_layer_norm_backward.default,
})  # fmt: skip


@cache
def is_composite(func: Any) -> bool:
    """Whether torch makes a call out of calls of other operators, of which autograd knows the gradients."""
    return (
        isinstance(func, torch._ops.OpOverload)
        and not func._schema.is_mutable
        and func._schema.name not in _WHOLE
        and torch._C._dispatch_has_kernel_for_dispatch_key(str(func._name), "CompositeImplicitAutograd")
    )


def is_followed(value: object) -> bool:
    """Whether autograd follows a tensor inside ``value`` while it is recorded."""
    if isinstance(value, torch.Tensor):
        return value.requires_grad
    if isinstance(value, dict):
        return any(map(is_followed, value.values()))
    return isinstance(value, list | tuple) and any(map(is_followed, value))


def unmasked(func: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments of one of ``MASKED`` for all gradients that it can give."""
    if func is torch.ops.aten.convolution_backward.default and args[3] is None:
        return (*args[:3], [args[0].shape[1]], *args[4:-1], [True, True, True])  # [channels] of a bias
    return (*args[:-1], [True, True, True])
