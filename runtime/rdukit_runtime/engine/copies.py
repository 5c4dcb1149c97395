"""Copies of host tensors as calls that have what they need: plain memory where that is all it is.

torch's own copy looks at everything first, which takes longer than the copy of a small batch.
"""

import ctypes
from collections.abc import Callable
from functools import partial

import torch


def copy_between(destination: torch.Tensor, source: torch.Tensor) -> Callable[[], object]:
    """A call that copies what ``source`` holds then into ``destination``, converted; both stay where they are."""
    if not (_is_plain(destination) and _is_plain(source) and source.dtype is destination.dtype):
        return partial(destination.copy_, source)
    addresses = destination.data_ptr(), source.data_ptr()
    move = partial(ctypes.memmove, *addresses, source.nbytes)
    move.tensors = destination, source  # type: ignore[attr-defined] # kept alive
    return move


def copy_into(destination: torch.Tensor) -> Callable[[torch.Tensor], object]:
    """A call that copies a tensor of the same shape into ``destination``, converted."""
    if not _is_plain(destination):
        return destination.copy_
    address, size, dtype = destination.data_ptr(), destination.nbytes, destination.dtype

    def copy(made: torch.Tensor) -> None:
        if made.dtype is dtype and made.is_contiguous():
            ctypes.memmove(address, made.data_ptr(), size)
        else:
            destination.copy_(made)

    return copy


def _is_plain(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "cpu" and tensor.is_contiguous()
