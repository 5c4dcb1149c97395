"""Checkpoints, tensor by tensor. Source: SDK reference 7.5, 19."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rdukit.errors import InvalidArgument, NotFound
from rdukit.files.atomic import atomic_target
from sambaflow.samba.conversion import symbols_of
from sambaflow.samba.sambatensor import unwrap
from sambaflow.sessions import is_loaded, loaded_pef


def save_tensors(tensors: Any, path: "str | Path") -> None:
    """Write named tensors as a safetensors file, atomically.

    ``tensors`` is a mapping from name to tensor, or SambaTensors and parameters, which are named by ``sn_name``.
    """
    from safetensors.torch import save_file

    named = dict(tensors) if isinstance(tensors, Mapping) else {str(t.sn_name): t for t in tensors}
    plain = {name: _plain(t).contiguous().clone() for name, t in named.items()}
    with atomic_target(Path(path)) as temporary:
        save_file(plain, str(temporary))


def load_sharded_checkpoint(
    model: nn.Module, path: "str | Path", ignore_dtype_mismatch: bool = False, strict: bool = True, **accepted: Any
) -> None:
    """Read a Hugging Face checkpoint (a folder with one safetensors file or a sharded index) into ``model``.

    One tensor is in memory at a time. It is copied to the device if the loaded PEF has the parameter, and to the host's
    copy unless that is empty.

    Raises:
        NotFound: there is no safetensors checkpoint in ``path``.
        InvalidArgument: a tensor has another shape; another dtype, without ``ignore_dtype_mismatch``; or is missing,
            with ``strict``.
    """
    targets = _targets(model)
    loaded: set[int] = set()
    symbols = symbols_of(model)
    for name, value in _read(Path(path)):
        target = targets.get(name)
        if target is None:
            continue
        if target.shape != value.shape:
            raise InvalidArgument(f"{path}: {name} is {list(value.shape)}; the model needs {list(target.shape)}")
        if target.dtype != value.dtype and not ignore_dtype_mismatch:
            raise InvalidArgument(
                f"{path}: {name} is {value.dtype}, the model needs {target.dtype}; pass ignore_dtype_mismatch=True"
            )
        value = value.to(target.dtype)
        symbol = getattr(target, "sn_name", "") or symbols[name]
        if is_loaded(symbol):
            loaded_pef().program.write(symbol, value)
            loaded_pef().copies.note_device([symbol])
        if target.device.type != "meta":
            with torch.no_grad():
                (target.data if isinstance(target, nn.Parameter) else target).copy_(value)
            if is_loaded(symbol):
                loaded_pef().copies.note([symbol])
        loaded.add(id(target))
    persistent = model.state_dict(keep_vars=True)
    missing = sorted(n for n, t in targets.items() if id(t) not in loaded and n in persistent)
    if strict and missing:
        raise InvalidArgument(
            f"{path} lacks {missing[:8]} of {len(targets)} tensors; pass strict=False to keep the model's own values"
        )


def _plain(tensor: Any) -> torch.Tensor:
    """Return the values of a parameter, a SambaTensor or an array as a plain torch tensor."""
    held = unwrap(tensor)
    return held.data if isinstance(held, torch.Tensor) else torch.as_tensor(held)


def _targets(model: nn.Module) -> dict[str, torch.Tensor]:
    return {**dict(model.named_parameters(remove_duplicate=False)), **dict(model.named_buffers(remove_duplicate=False))}


def _read(folder: Path) -> Iterator[tuple[str, torch.Tensor]]:
    from safetensors import safe_open

    for file in _files(folder):
        with safe_open(str(file), framework="pt") as stream:
            for name in stream.keys():  # noqa: SIM118 - not a mapping
                yield name, stream.get_tensor(name)


def _files(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    if folder.is_file():
        return [folder]
    if index.exists():
        files = [folder / str(f) for f in sorted(set(json.loads(index.read_text())["weight_map"].values()))]
    else:
        files = [folder / "model.safetensors"]
    for file in files:
        if not file.exists():
            raise NotFound(
                f"{file} does not exist; a checkpoint folder has model.safetensors, or "
                "model.safetensors.index.json and the files that it names"
            )
    return files


__all__ = ["load_sharded_checkpoint", "save_tensors"]
