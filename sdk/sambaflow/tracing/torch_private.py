"""Private names of torch that the SDK uses, and attributes of torch that are replaced while a model is traced.

torch is pinned to one exact version. ``tests/unit/test_torch_private.py`` reports what an upgrade lacks or has changed.
"""

import contextlib
from collections.abc import Iterator
from typing import Any, Final

import torch
import torch.nn.utils.clip_grad
import torch.optim.optimizer as _optimizers
from torch._ops import OpOverload as OpOverload
from torch._subclasses.fake_tensor import FakeTensor as FakeTensor
from torch._subclasses.fake_tensor import unset_fake_temporarily as unset_fake_temporarily

#: Contexts in which torch functions skip overrides of subclasses, or of subclasses and modes.
DisableTorchFunctionSubclass = torch._C.DisableTorchFunctionSubclass
DisableTorchFunction = torch._C.DisableTorchFunction
#: The ``__torch_function__`` of a subclass whose results are plain tensors.
disabled_torch_function = torch._C._disabled_torch_function_impl

#: Getter of ``tensor.data``: to recognise it in an override, and to call it without the override.
data_of: Any = torch.Tensor.data.__get__  # type: ignore[attr-defined]

#: Number of tensors and arrays that use the memory of a storage, by its ``_cdata``, while the storage is kept.
count_users: Any = torch._C._storage_Use_Count

#: Rebuilds a parameter from (data, requires_grad, hooks), as in torch's pickles.
rebuild_parameter = torch._utils._rebuild_parameter

#: Module in which ``clip_grad_norm_`` and related functions look up names, however a program has imported them.
CLIP_GRADIENTS: Any = torch.nn.utils.clip_grad
TOTAL_NORM: Final = "_get_total_norm"
CLIP_WITH_NORM: Final = "_clip_grads_with_norm_"
#: Function that ``torch.autograd.backward`` and ``grad`` look up when called, however a program has imported them.
MAKE_GRADIENTS: Final = "_make_grads"


def mark_stepped(optimizer: torch.optim.Optimizer) -> None:
    """Notify torch's learning rate schedulers that the optimizer has made a step."""
    optimizer._opt_called = True  # type: ignore[attr-defined]


def step_hooks(optimizer: torch.optim.Optimizer) -> tuple[list[Any], list[Any]]:
    """Return a program's hooks before and after ``optimizer.step``, those for all optimizers first."""
    before = [*_optimizers._global_optimizer_pre_hooks.values(), *optimizer._optimizer_step_pre_hooks.values()]
    after = [*optimizer._optimizer_step_post_hooks.values(), *_optimizers._global_optimizer_post_hooks.values()]
    return before, after


#: Modules by name: imported only when they are needed.
DYNAMO: Final = "torch._dynamo"
ASSOCIATIVE_SCAN: Final = "torch._higher_order_ops.associative_scan"
FAKE_TENSORS: Final = "torch._subclasses."


@contextlib.contextmanager
def replaced(*replacements: tuple[Any, str, Any]) -> Iterator[None]:
    """Set each (owner, attribute, value) inside the block, and restore the former values afterwards."""
    former = [(owner, name, getattr(owner, name)) for owner, name, _ in replacements]
    try:
        for owner, name, value in replacements:
            setattr(owner, name, value)
        yield
    finally:
        for owner, name, value in former:
            setattr(owner, name, value)
