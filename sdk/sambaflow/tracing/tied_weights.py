"""Tied weights: one parameter in several places, which a compile without values and a run with them see alike.

A tie is one ``nn.Parameter`` in several places: ``head.weight = embedding.weight``. Two parameters over one memory are
no tie for a device, which holds each of them apart.
"""

from collections.abc import Collection, Iterator, Mapping

import torch
from torch import nn

from rdukit.errors import TraceError
from sambaflow.samba.conversion import symbols_of


def tied_elsewhere(model: nn.Module, compiled: Collection[str]) -> str:
    """Return the hint for a PEF that has a parameter of its own for what ``model`` ties; empty if it has none.

    Args:
        compiled: symbols of the PEF's parameters.
    """
    symbols = symbols_of(model)
    for path, parameter in model.named_parameters(remove_duplicate=False):
        kept, here = str(getattr(parameter, "sn_name", "")), symbols[path]
        if here != kept and here in compiled:
            return (
                f". This program ties {here!r} to {kept!r}, and the compile held them apart: tie them in both, before "
                "from_torch_model_"
            )
    return ""


def check_apart(state: Mapping[str, torch.Tensor], trained: Collection[str]) -> None:
    """Check that no memory of a trained parameter has another name: the device would keep two values of it.

    Args:
        state: parameters, buffers and constants by symbol.
        trained: symbols of those that an optimizer changes.
    Raises:
        TraceError: a part of a trained parameter's memory belongs to something else, too.
    """
    for sharing in _by_memory(state):
        for name in sharing:
            if name in trained and (other := _find_overlap(name, sharing)) is not None:
                raise TraceError(
                    f"{name!r} is trained and shares memory with {other!r}, of which the device holds a value of its "
                    "own; tie them by assigning the parameter itself (head.weight = embedding.weight), or clone() one"
                )


def _by_memory(state: Mapping[str, torch.Tensor]) -> Iterator[dict[str, torch.Tensor]]:
    """Yield tensors over one memory, where there are several."""
    found: dict[int, dict[str, torch.Tensor]] = {}
    for name, tensor in state.items():
        if tensor.layout is torch.strided and tensor.numel():
            found.setdefault(int(tensor.untyped_storage()._cdata), {})[name] = tensor
    yield from (sharing for sharing in found.values() if len(sharing) > 1)


def _find_overlap(name: str, sharing: Mapping[str, torch.Tensor]) -> str | None:
    """Return another tensor that has an element of ``name``'s memory."""
    tensor = sharing[name]
    memory = torch.zeros(tensor.untyped_storage().nbytes(), dtype=torch.bool)
    _bytes_of(tensor, memory).fill_(True)
    return next((n for n, other in sharing.items() if n != name and bool(_bytes_of(other, memory).any())), None)


def _bytes_of(tensor: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
    """Return the part of ``memory``, one element for each byte, that is the tensor's; repeats are there once."""
    size = tensor.element_size()
    shape = [n if stride else 1 for n, stride in zip(tensor.shape, tensor.stride(), strict=True)]
    return memory.as_strided(
        (*shape, size), (*(size * stride for stride in tensor.stride()), 1), size * tensor.storage_offset()
    )
