"""Private names of torch that the SDK uses, and attributes of torch that are others while a model is traced.

torch is pinned to one exact version. ``tests/unit/test_torch_private.py`` says what an upgrade lacks or has changed.
"""

import contextlib
from collections.abc import Iterator
from typing import Any, Final

import torch
import torch.nn.utils.clip_grad
import torch.optim.optimizer as _optimizers
from torch._subclasses.fake_tensor import FakeTensor as FakeTensor
from torch._subclasses.fake_tensor import unset_fake_temporarily as unset_fake_temporarily

#: Contexts in which torch functions do not ask subclasses, or subclasses and modes.
DisableTorchFunctionSubclass = torch._C.DisableTorchFunctionSubclass
DisableTorchFunction = torch._C.DisableTorchFunction
#: The ``__torch_function__`` of a subclass whose results are plain tensors.
disabled_torch_function = torch._C._disabled_torch_function_impl

#: Getter of ``tensor.data``: compared with the function that a subclass is asked about, and called without asking it.
data_of: Any = torch.Tensor.data.__get__  # type: ignore[attr-defined]

#: How many tensors and arrays use the memory of a storage, by its ``_cdata``, while that storage is kept.
count_users: Any = torch._C._storage_Use_Count

#: Makes a parameter of (data, requires_grad, hooks): how torch pickles parameters.
rebuild_parameter = torch._utils._rebuild_parameter

#: What ``clip_grad_norm_`` and its kin look up when called, however a program has imported them.
CLIP_GRADIENTS: Any = torch.nn.utils.clip_grad
TOTAL_NORM: Final = "_get_total_norm"
CLIP_WITH_NORM: Final = "_clip_grads_with_norm_"
#: What ``torch.autograd.backward`` and ``grad`` look up when called, however a program has imported them.
MAKE_GRADIENTS: Final = "_make_grads"


def mark_stepped(optimizer: torch.optim.Optimizer) -> None:
    """Let torch's learning rate schedulers know that the optimizer has made a step."""
    optimizer._opt_called = True  # type: ignore[attr-defined]


def step_hooks(optimizer: torch.optim.Optimizer) -> tuple[list[Any], list[Any]]:
    """Return what a program has registered to run before and after ``optimizer.step``, for all optimizers first."""
    before = [*_optimizers._global_optimizer_pre_hooks.values(), *optimizer._optimizer_step_pre_hooks.values()]
    after = [*optimizer._optimizer_step_post_hooks.values(), *_optimizers._global_optimizer_post_hooks.values()]
    return before, after


#: Modules by name: imported only when they are needed.
DYNAMO: Final = "torch._dynamo"
ASSOCIATIVE_SCAN: Final = "torch._higher_order_ops.associative_scan"
FAKE_TENSORS: Final = "torch._subclasses."


@contextlib.contextmanager
def replaced(*replacements: tuple[Any, str, Any]) -> Iterator[None]:
    """Give each (owner, attribute, value) that value for a while; afterwards it has what it had before."""
    former = [(owner, name, getattr(owner, name)) for owner, name, _ in replacements]
    try:
        for owner, name, value in replacements:
            setattr(owner, name, value)
        yield
    finally:
        for owner, name, value in former:
            setattr(owner, name, value)
