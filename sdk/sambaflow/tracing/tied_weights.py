"""Tied weights: one parameter in several places, treated alike by a compile without values and a run with them.

A tie is one ``nn.Parameter`` in several places: ``head.weight = embedding.weight``. Two parameters over one memory are
not tied on a device, which holds each separately.
"""

import contextlib
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import cast

import torch
from torch import nn

from rdukit.errors import PefError, TraceError
from rdukit.pef.file import read_summary
from sambaflow.samba.conversion import symbols_of
from sambaflow.samba.nn.parameter import convert_parameter_


def tied_places(model: nn.Module) -> dict[str, str]:
    """Return a converted model's places with another place's parameter: path → the place's own symbol."""
    symbols = symbols_of(model)
    first: dict[int, str] = {}
    places: dict[str, str] = {}
    for path, parameter in model.named_parameters(remove_duplicate=False):
        if first.setdefault(id(parameter), path) != path:
            places[path] = symbols[path]
    return places


def compiled_apart(model: nn.Module, path: str) -> dict[str, str]:
    """Return the places that ``model`` ties, but that have separate parameters in the inference PEF at ``path``.

    Both parameters may then get the same value. A training PEF would change each only by its own gradient.

    Returns:
        Paths of modules' parameters → symbols of the PEF; empty for an unreadable PEF, which loading reports.
    """
    places = tied_places(model)
    if not places:
        return {}
    try:
        summary = read_summary(Path(path))
    except PefError:
        return {}
    return {place: name for place, name in places.items() if summary.inference and name in summary.parameters}


@contextlib.contextmanager
def untied(model: nn.Module, places: Mapping[str, str]) -> Iterator[dict[str, nn.Parameter]]:
    """Give ``places`` separate parameters inside the block, over the tied ones' memory.

    Args:
        places: path of a parameter → the symbol that it gets.
    Yields:
        The tied parameters by those symbols.
    """
    tied: dict[str, nn.Parameter] = {}
    with contextlib.ExitStack() as stack:
        for path, symbol in places.items():
            owner, _, name = path.rpartition(".")
            held = model.get_submodule(owner)._parameters
            parameter = tied[symbol] = cast(nn.Parameter, held[name])
            own = nn.Parameter(parameter.detach(), requires_grad=parameter.requires_grad)
            convert_parameter_(own, symbol)
            held[name] = own
            stack.callback(held.__setitem__, name, parameter)
        yield tied


def tied_elsewhere(model: nn.Module, compiled: Collection[str]) -> str:
    """Return the hint for a PEF with a separate parameter for a place that ``model`` ties; empty without one.

    Args:
        compiled: symbols of the PEF's parameters.
    """
    parameters = dict(model.named_parameters(remove_duplicate=False))
    for path, symbol in tied_places(model).items():
        if symbol in compiled:
            kept = str(getattr(parameters[path], "sn_name", ""))
            return (
                f". This program ties {symbol!r} to {kept!r}, but the compile kept them separate, so the device would "
                "train each by its own gradient only. Also tie them before from_torch_model_ at the compile, or give "
                f"{path!r} its own parameter here"
            )
    return ""


def check_apart(state: Mapping[str, torch.Tensor], trained: Collection[str]) -> None:
    """Check that trained parameters do not share memory with other names, for which the device would keep two values.

    Args:
        state: parameters, buffers and constants by symbol.
        trained: symbols of the parameters that an optimizer changes.
    Raises:
        TraceError: another tensor uses a part of a trained parameter's memory.
    """
    for sharing in _by_memory(state):
        for name in sharing:
            if name in trained and (other := _find_overlap(name, sharing)) is not None:
                raise TraceError(
                    f"{name!r} is trained and shares memory with {other!r}, but the device holds separate values; tie "
                    "them by assigning the parameter itself (head.weight = embedding.weight), or clone() one"
                )


def _by_memory(state: Mapping[str, torch.Tensor]) -> Iterator[dict[str, torch.Tensor]]:
    """Yield groups of several tensors over one memory."""
    found: dict[int, dict[str, torch.Tensor]] = {}
    for name, tensor in state.items():
        if tensor.layout is torch.strided and tensor.numel():
            found.setdefault(int(tensor.untyped_storage()._cdata), {})[name] = tensor
    yield from (sharing for sharing in found.values() if len(sharing) > 1)


def _find_overlap(name: str, sharing: Mapping[str, torch.Tensor]) -> str | None:
    """Return another tensor that shares an element with ``name``."""
    tensor = sharing[name]
    memory = torch.zeros(tensor.untyped_storage().nbytes(), dtype=torch.bool)
    _bytes_of(tensor, memory).fill_(True)
    return next((n for n, other in sharing.items() if n != name and bool(_bytes_of(other, memory).any())), None)


def _bytes_of(tensor: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
    """Return the tensor's part of ``memory``, which has an element for each byte; repeated bytes appear once."""
    size = tensor.element_size()
    shape = [n if stride else 1 for n, stride in zip(tensor.shape, tensor.stride(), strict=True)]
    return memory.as_strided(
        (*shape, size), (*(size * stride for stride in tensor.stride()), 1), size * tensor.storage_offset()
    )
