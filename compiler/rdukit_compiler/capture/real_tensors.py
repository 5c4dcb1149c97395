"""Restores tensors, other than parameters and buffers, that forward overwrites while it is recorded.

Forward runs once for the record, and torch executes its writes to tensors that have values: plain attributes, items of
lists, globals. Such a tensor gets its former values back, so that the first run starts from them.
"""

import contextlib
from collections.abc import Iterable, Iterator

import torch

from rdukit_compiler.torch_private import FakeTensor, no_dispatch

#: Address of a tensor's memory → a tensor over it, and a copy of its values before they were overwritten.
Overwritten = dict[int, tuple[torch.Tensor, torch.Tensor]]


@contextlib.contextmanager
def restored_tensors() -> Iterator[Overwritten]:
    """Yield a dict for ``keep_overwritten``; restore the values of its tensors at the end."""
    kept: Overwritten = {}
    try:
        yield kept
    finally:
        with torch.no_grad():
            for tensor, values in kept.values():
                tensor.copy_(values)


def keep_overwritten(kept: Overwritten, arguments: Iterable[object]) -> None:
    """Copy the values of the tensors among ``arguments`` before an operator overwrites one."""
    for value in arguments:
        if isinstance(value, torch.Tensor) and type(value) is not FakeTensor and value.layout is torch.strided:
            _keep(kept, value)


def _keep(kept: Overwritten, value: torch.Tensor) -> None:
    if value.is_meta or isinstance(value, FakeTensor) or not value.numel():
        return
    with no_dispatch():
        address = value.untyped_storage().data_ptr()
        if address not in kept:
            whole = torch.empty(0, dtype=value.dtype).set_(value.untyped_storage())
            kept[address] = whole, whole.clone()
