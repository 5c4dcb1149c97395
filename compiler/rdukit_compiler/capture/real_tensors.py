"""Tensors of a program that forward overwrites while it is recorded, and that are neither parameters nor buffers.

Forward runs once for the record, and torch carries out what it does to a tensor that has values: a plain attribute, an
item of a list, a global. Such a tensor gets its values back, so that the first run starts from them.
"""

import contextlib
from collections.abc import Iterable, Iterator

import torch

from rdukit_compiler.torch_private import FakeTensor, no_dispatch

#: Address of a tensor's memory → a tensor over it, and a copy of its values before they were overwritten.
Overwritten = dict[int, tuple[torch.Tensor, torch.Tensor]]


@contextlib.contextmanager
def restored_tensors() -> Iterator[Overwritten]:
    """Give a dict to note tensors in with ``keep_overwritten``; they get their values back afterwards."""
    kept: Overwritten = {}
    try:
        yield kept
    finally:
        with torch.no_grad():
            for tensor, values in kept.values():
                tensor.copy_(values)


def keep_overwritten(kept: Overwritten, arguments: Iterable[object]) -> None:
    """Note those of ``arguments`` that have values; an operator is about to overwrite one."""
    for value in arguments:
        if isinstance(value, torch.Tensor) and type(value) is not FakeTensor and value.layout is torch.strided:
            _keep(kept, value)


def _keep(kept: Overwritten, value: torch.Tensor) -> None:
    if value.is_meta or isinstance(value, FakeTensor) or not value.numel():
        return
    with no_dispatch():
        address = value.untyped_storage().data_ptr()
        if address not in kept:
            whole = torch.empty(0, dtype=value.dtype).set_(value.untyped_storage())  # type: ignore[call-overload]
            kept[address] = whole, whole.clone()
