"""Private names of torch that the runtime uses.

torch is pinned to one exact version. ``tests/unit/test_torch_private.py`` shows what an upgrade lacks or has changed.
"""

from datetime import timedelta

import torch
from torch._C._distributed_c10d import HashStore as HashStore
from torch._C._distributed_c10d import PrefixStore as PrefixStore
from torch._C._distributed_c10d import ProcessGroup, ProcessGroupGloo
from torch._C._distributed_c10d import Store as Store
from torch._C._distributed_c10d import TCPStore as TCPStore
from torch._ops import OpOverload as OpOverload
from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode

#: Tensors → handles that a native library takes; and back, with the memory.
alloc_handles = torch._C._aoti.unsafe_alloc_void_ptrs_from_tensors
steal_handles = torch._C._aoti.alloc_tensors_by_stealing_from_void_ptrs

#: Updates of lists of tensors, in place.
foreach_add_ = torch._foreach_add_
fused_sgd_ = torch._fused_sgd_
fused_adamw_ = torch._fused_adamw_

#: Products of int8 matrices that add up in int32.
int_mm = torch._int_mm


def has_cuda_kernel(called: OpOverload) -> bool:
    """Return whether torch has a CUDA kernel for an operator."""
    schema = called._schema
    name = f"{schema.name}.{schema.overload_name}" if schema.overload_name else schema.name
    return bool(torch._C._dispatch_has_computed_kernel_for_dispatch_key(name, "CUDA"))


def gloo_group(store: Store, rank: int, size: int, timeout: timedelta) -> ProcessGroup:
    """Return a gloo group that is in none of torch's lists."""
    group = ProcessGroup(store, rank, size)
    group._set_default_backend(ProcessGroup.BackendType.GLOO)
    group._register_backend(
        torch.device("cpu"), ProcessGroup.BackendType.GLOO, ProcessGroupGloo(store, rank, size, timeout)
    )
    return group


def wait_limit_of(group: ProcessGroup) -> timedelta:
    """Return the time limit of a call of a gloo group."""
    limit: timedelta = group._get_backend(torch.device("cpu")).options._timeout
    return limit


def limit_waits(group: ProcessGroup, limit: timedelta) -> None:
    """Set the time limit of a call of a gloo group."""
    backend = group._get_backend(torch.device("cpu"))
    assert isinstance(backend, ProcessGroupGloo)
    backend._set_default_timeout(limit)
