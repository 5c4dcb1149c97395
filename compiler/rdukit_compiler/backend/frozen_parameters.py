"""Parameters that forward freezes for a while: what it reads of them then has no gradient.

``requires_grad_`` and the attribute ``requires_grad`` come here while a forward is recorded. Source: ours.
"""

from collections.abc import Mapping
from typing import Any, Final

import torch
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from rdukit.errors import TraceError, UnsupportedOperator
from rdukit_compiler.backend.gradient_flow import GradientFlow

#: torch's functions that say whether a tensor requires a gradient: (tensor, value).
SAYS_REQUIRES_GRAD: Final = frozenset({
    torch.Tensor.requires_grad_, torch.Tensor.requires_grad.__set__,  # type: ignore[attr-defined]
})  # fmt: skip

#: Metadata of the node that a frozen tensor stands for: its entry in the tracker before, and torch's own flag.
_FROZEN_META: Final = "rdukit_frozen"


def set_requires_grad(tracker: Any, flow: GradientFlow, tensor: Any, value: bool = True) -> bool:
    """Say whether ``tensor`` requires a gradient from now on; False if torch shall do so.

    Args:
        flow: of the record.
    Raises:
        RuntimeError: ``tensor`` is computed of what requires a gradient, and shall not require one.
        UnsupportedOperator: a parameter shall that did not when the record began.
    """
    entry = tracker.get(tensor)
    if entry is None:
        return False
    node = entry.proxy.node
    if _FROZEN_META in node.meta:
        if value:
            tracker[tensor], flag = node.meta[_FROZEN_META]
            torch.Tensor.requires_grad_(tensor, flag)
        return True
    is_parameter = isinstance(tensor, torch.nn.Parameter)
    carries = flow.requires_gradient(node)
    if node.op != "placeholder" and not is_parameter:
        if carries and not value and not tensor.requires_grad:
            raise RuntimeError(
                "you can only change requires_grad flags of leaf variables; use detach() for a value without gradient"
            )
        return carries
    if not carries:
        if is_parameter and value:
            name = getattr(tensor, "sn_name", "")
            raise UnsupportedOperator(
                f"forward lets parameter {name!r} require a gradient, which was frozen when the model was traced; call "
                "requires_grad_(True) before compile and trace"
            )
        return False
    if not value:
        flag = bool(tensor.requires_grad)
        frozen = tracker[tensor.detach()]
        frozen.proxy.node.meta[_FROZEN_META] = entry, flag
        torch.Tensor.requires_grad_(tensor, False)
        tracker[tensor] = frozen
    return True


def check_frozen(stand_ins: Mapping[str, torch.Tensor]) -> None:
    """Check that the next call of forward finds its parameters as this one did.

    Args:
        stand_ins: path of a parameter → the tensor that stands for it.
    Raises:
        TraceError: forward read a parameter and then froze it for good: the next call would read it frozen.
    """
    mode = get_proxy_mode()
    assert mode is not None
    for path, tensor in stand_ins.items():
        entry = mode.tracer.tensor_tracker.get(tensor)
        frozen = entry.proxy.node.meta.get(_FROZEN_META) if entry is not None else None
        if frozen is not None and any(_FROZEN_META not in user.meta for user in frozen[0].proxy.node.users):
            raise TraceError(
                f"forward freezes parameter {path!r} after it has used it, and leaves it so: its next call would have "
                "other gradients; call requires_grad_(True) before forward ends, or freeze it before it is used"
            )
