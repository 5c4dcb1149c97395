"""Private names of torch that the whole compiler uses; ``backend/torch_private.py`` has those of inductor.

torch is pinned to one exact version. ``tests/unit/test_torch_private.py`` says what an upgrade lacks or has changed.
"""

from typing import Any, Final

import torch
import torch._prims_common
from torch._ops import OpOverload as OpOverload
from torch._subclasses.fake_impls import register_op_impl as register_op_impl
from torch._subclasses.fake_tensor import FakeTensor as FakeTensor
from torch._subclasses.fake_tensor import FakeTensorMode as FakeTensorMode
from torch._subclasses.fake_tensor import in_kernel_invocation_manager as in_kernel_invocation_manager
from torch._subclasses.fake_tensor import unset_fake_temporarily as unset_fake_temporarily

prims_common = torch._prims_common

#: A context in which torch functions ask neither subclasses nor modes.
DisableTorchFunction = torch._C.DisableTorchFunction
#: What ``torch.no_grad`` calls, and leaves in a record.
set_grad_enabled = torch._C._set_grad_enabled

has_onednn: bool = torch._C._has_mkldnn

#: torch.func: whether a transformation is under way, and tensors that one wraps or has left behind.
are_transforms_active = torch._C._are_functorch_transforms_active
peek_interpreter_stack = torch._C._functorch.peek_interpreter_stack
unwrap_if_dead = torch._C._functorch.unwrap_if_dead
is_functorch_wrapped_tensor = torch._C._functorch.is_functorch_wrapped_tensor

all_operator_names = torch._C._dispatch_get_all_op_names
has_kernel_for_key = torch._C._dispatch_has_kernel_for_dispatch_key
#: Whether attention may take these forms, for every device.
get_flash_sdp_enabled = torch._C._get_flash_sdp_enabled
get_math_sdp_enabled = torch._C._get_math_sdp_enabled

#: Name of a logger, and the beginning of modules' names.
FAKE_TENSOR_LOGGER: Final = "torch._subclasses.fake_tensor"
FUNCTORCH: Final = "torch._functorch"


def current_fake_mode() -> Any:
    """Return the mode that makes fake tensors now, or None."""
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE)
