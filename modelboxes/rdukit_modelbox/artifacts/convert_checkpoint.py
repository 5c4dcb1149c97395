"""A pickled checkpoint → safetensors, read with ``weights_only``, so that no code in it runs."""

import pickle
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import torch
from safetensors.torch import save

from rdukit.errors import InvalidArgument, NotFound
from rdukit.files.atomic import write_atomic

#: Keys under which training scripts keep the parameters.
_NESTED: Final = ("state_dict", "model_state_dict", "model")
#: Errors of torch's reader for files that are no checkpoint.
_DAMAGE: Final = (
    pickle.UnpicklingError, struct.error, RuntimeError, EOFError, ValueError, TypeError, LookupError, AttributeError,
    OverflowError, AssertionError,
)  # fmt: skip


def convert_checkpoint(source: Path, target: Path) -> dict[str, tuple[int, ...]]:
    """Write the tensors of ``source`` to ``target``; other values are left out.

    Returns:
        Names and shapes.
    Raises:
        NotFound: no such file.
        InvalidArgument: not a checkpoint, it holds more than plain values, or no tensors.
    """
    try:
        value = torch.load(source, map_location="cpu", weights_only=True)
    except FileNotFoundError as cause:
        raise NotFound(f"there is no file {source}") from cause
    except _DAMAGE as cause:
        raise InvalidArgument(
            f"{source} is damaged, or contains objects other than tensors and plain values, which could run code; "
            "expected a file written by torch.save(model.state_dict(), FILE)"
        ) from cause
    for key in _NESTED:
        if isinstance(value, Mapping) and isinstance(value.get(key), Mapping):
            value = value[key]
    # Copies, because tied parameters share memory, and safetensors stores each separately.
    tensors = {name: tensor.detach().clone().contiguous() for name, tensor in _tensors(value, "")}
    if not tensors:
        raise InvalidArgument(f"{source} has no tensors by name; save model.state_dict()")
    write_atomic(target, save(tensors))
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def _tensors(value: object, name: str) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor) and name:
        yield name, value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _tensors(inner, f"{name}.{key}" if name else str(key))
