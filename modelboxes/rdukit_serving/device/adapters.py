"""Adapters of a text model: low-rank updates next to shared weights. Each text uses one or none.

Source: Hu et al., LoRA: Low-Rank Adaptation of Large Language Models (2021), arXiv 2106.09685; the files of the library
PEFT, ``adapter_model.safetensors`` and ``adapter_config.json``.

Axes: r rank, I inputs and O outputs of a layer.
"""

import json
import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final

import torch

from rdukit.errors import InvalidArgument
from rdukit.pef import Pef
from rdukit.pef.checkpoint_files import ADAPTER_PARTS
from rdukit_serving.device.parameters import (
    LayerUpdate,
    Tensors,
    load_parameters,
    match_parameters,
    split_adapters,
)
from rdukit_serving.shape import Shape, shape_of

PEFT_CONFIG: Final = "adapter_config.json"
PEFT_FILE: Final = "adapter_model.safetensors"
_PEFT_PREFIX: Final = "base_model.model."
#: Further options of PEFT, each with the value that disables it.
_PLAIN: Final[Mapping[str, Any]] = {
    "bias": "none", "use_dora": False, "rank_pattern": {}, "alpha_pattern": {},
    "modules_to_save": None, "layer_replication": None, "trainable_token_indices": None, "target_parameters": None,
    "alora_invocation_tokens": None, "use_qalora": False,
}  # fmt: skip
#: Initialisations that keep the base's weights. Others, such as PiSSA, change them.
_KEPT_BASES: Final = (True, False, None, "gaussian", "eva", "orthogonal")


def read_adapter(path: Path, wanted: Shape | None = None) -> tuple[Mapping[str, LayerUpdate], Tensors]:
    """Read an adapter: the updates by layer, and the file's other tensors, which identify its base weights.

    ``path`` is a checkpoint of a training with ``lora_rank``, or a PEFT folder, which has no other tensors and does not
    name its model. ``wanted`` is the shape of the PEF to load it for.

    Raises:
        NotFound: there is no such checkpoint.
        InvalidArgument: it is damaged, has no adapter, or uses an unsupported option, which the message names.
    """
    is_peft = path.is_dir() and (path / PEFT_CONFIG).is_file()
    _, found = load_parameters(path / PEFT_FILE) if is_peft else load_parameters(path, wanted=wanted)
    if is_peft:
        found = _named_as_ours(found, peft_scale(path / PEFT_CONFIG))
    updates, others = split_adapters(found)
    if not updates:
        raise InvalidArgument(
            f"{path} has no adapter; expected a checkpoint of a training with lora_rank, or a folder with {PEFT_FILE}"
        )
    return updates, others


def peft_scale(file: Path, allowed: Collection[str] = ()) -> float:
    """Return the factor of the updates of a folder of PEFT, by its ``adapter_config.json``.

    Args:
        allowed: options that the caller takes care of.
    Raises:
        InvalidArgument: the file is damaged, or has an option that is not supported, which the message names.
    """
    try:
        config = json.loads(file.read_text())
        rank, alpha = int(config["r"]), float(config["lora_alpha"])
    except (ValueError, KeyError, TypeError) as cause:
        raise InvalidArgument(f"{file} is damaged: {cause!r}") from cause
    if config.get("peft_type", "LORA") != "LORA":
        raise InvalidArgument(f"{file}: peft_type is {config['peft_type']!r}; expected LORA")
    for key, plain in _PLAIN.items():
        if key not in allowed and config.get(key, plain) not in (plain, None, False, {}, []):
            raise InvalidArgument(f"{file}: {key} is {config[key]!r}, which is not supported; expected {plain!r}")
    begun = config.get("init_lora_weights", True)
    if begun not in _KEPT_BASES:
        legal = ", ".join(map(repr, _KEPT_BASES))
        raise InvalidArgument(
            f"{file}: init_lora_weights is {begun!r}, which changes the base's weights; expected one of {legal}; save "
            "the adapter by save_pretrained with path_initial_model_for_weight_conversion"
        )
    if rank < 1:
        raise InvalidArgument(f"{file}: r is {rank}; expected 1 and more")
    return alpha / math.sqrt(rank) if config.get("use_rslora") else alpha / rank


def _named_as_ours(tensors: Tensors, scale: float) -> Tensors:
    found: dict[str, torch.Tensor] = {}
    for name, value in tensors.items():
        layer, _, part = name.removeprefix(_PEFT_PREFIX).removesuffix(".weight").rpartition(".")
        if f".{part}" not in ADAPTER_PARTS[:2]:
            raise InvalidArgument(
                f"{PEFT_FILE}: {name!r} is not part of an adapter; expected …lora_A.weight, …lora_B.weight"
            )
        found[f"{layer}.{part}"] = value
        found[layer + ADAPTER_PARTS[2]] = torch.tensor([scale])
    return found


def place_adapters(pef: Pef, base: Tensors, adapters: Mapping[str, Path]) -> Tensors:
    """Return adapters next to a base's weights as tensors by their names in a checkpoint.

    Args:
        base: parameters of the model that the adapters were trained with. adapters: files by name, in the order of
        their numbers.

    Raises:
        InvalidArgument: an adapter does not fit into this PEF, or was trained with other weights.
        NotFound: as ``read_adapter``.
    """
    shape = shape_of(pef, pef.name)
    text = shape.text
    room, most = (text.adapters, text.adapter_rank) if text is not None else (0, 0)
    if len(adapters) > room:
        raise InvalidArgument(
            f"adapter {list(adapters)[room]!r} is one too many; expected {room}, because the PEF was compiled with "
            f"adapters={room}"
        )
    weights = {name: value for name, value in base.items() if name.endswith(".weight") and value.dim() == 2}
    placed: dict[str, torch.Tensor] = {}
    for name, value in weights.items():
        layer = name.removesuffix(".weight")
        placed[f"{layer}.lora_A"] = torch.zeros(room * most, value.shape[1])
        placed[f"{layer}.lora_B"] = torch.zeros(value.shape[0], room * most)
    known = match_parameters(pef, [*base, *placed])
    placed = {name: value for name, value in placed.items() if name in known}
    for number, (name, path) in enumerate(adapters.items()):
        updates, others = read_adapter(path, shape)
        changed = [key for key, value in others.items() if key in base and not _are_alike(value, base[key])]
        if changed:
            raise InvalidArgument(f"adapter {name!r} was trained with other base weights: {changed[0]} differs")
        for layer, update in updates.items():
            _place(placed, name, layer, update, number * most, most)
    return placed


def _place(
    placed: Mapping[str, torch.Tensor], name: str, layer: str, update: LayerUpdate, begin: int, most: int
) -> None:  # fmt: skip
    down, up = (placed.get(f"{layer}{part}") for part in ADAPTER_PARTS[:2])
    if down is None or up is None:
        raise InvalidArgument(f"adapter {name!r} has an update for {layer}, which this model does not support")
    rank = len(update.down)
    if rank > most:
        raise InvalidArgument(
            f"adapter {name!r} has the rank {rank}; expected 1 to {most}, because the PEF was compiled with "
            f"adapter_rank={most}"
        )
    legal = ((rank, down.shape[1]), (up.shape[0], rank))
    if (update.down.shape, update.up.shape) != legal:
        raise InvalidArgument(
            f"adapter {name!r}: {layer} has updates {tuple(update.down.shape)} and {tuple(update.up.shape)}; "
            f"expected {legal[0]} and {legal[1]}"
        )
    down[begin : begin + rank] = update.down
    up[:, begin : begin + rank] = update.up * update.scale


def _are_alike(some: torch.Tensor, other: torch.Tensor) -> bool:
    return some.shape == other.shape and torch.equal(some.float(), other.float())
