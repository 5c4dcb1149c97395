"""Folders of adapters as PEFT writes them: updates of low rank, and the Hugging Face folder that they belong to.

Source: peft, "Checkpoint format". PEFT's names are those of transformers' modules, which the zoo's formats know.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import save_file

from rdukit.errors import InvalidArgument, NotFound
from rdukit.files.atomic import write_json_atomic
from rdukit.pef.checkpoint_files import ADAPTER_PARTS
from rdukit_serving.device.adapters import PEFT_CONFIG, PEFT_FILE, peft_scale
from rdukit_serving.device.parameters import Tensors, load_parameters
from rdukit_zoo.checkpoints.folder import CONFIG, HubFolder, shared_names

#: PEFT's names of tasks; PEFT has none for pictures.
_PEFT_TASKS: Final = {
    "language-modelling": "CAUSAL_LM", "sequence-classification": "SEQ_CLS", "text-to-text": "SEQ_2_SEQ_LM",
}  # fmt: skip
_PREFIX: Final = "base_model.model."
#: Parts of names on disk → in transformers' modules, if they differ. Source: transformers 5, ViT.
_IN_MEMORY: Final = (
    (r"\bvit\.encoder\.layer\.", "vit.layers."),
    (r"(?<=\d)\.attention\.attention\.(query|key|value)\b", r".attention.\1"),
    (r"(?<=\d)\.attention\.output\.dense\b", ".attention.o_proj"),
    (r"(?<=\d)\.intermediate\.dense\b", ".mlp.fc1"),
    (r"(?<=\d)\.output\.dense\b", ".mlp.fc2"),
    (r"\.attention\.(q|k|v)[a-z]+\b", r".attention.\1_proj"),
)
_EXPECTED: Final = "…lora_A.weight and …lora_B.weight of linear layers"


@dataclass(frozen=True, slots=True)
class PeftAdapter:
    """Updates of low rank under the model's own names, with scales, as checkpoints have them."""

    path: Path
    rank: int
    #: Factor of the updates, times the rank.
    alpha: float
    #: Names of the layers with updates.
    layers: tuple[str, ...]
    tensors: Tensors
    #: Tensors that replace the base's, such as a head that was trained with the updates.
    replaced: Tensors


def is_peft_folder(folder: Path) -> bool:
    """Return whether a folder holds an adapter."""
    return (folder / PEFT_CONFIG).is_file()


def base_of(folder: Path, base: Path | None = None) -> Path:
    """Return the Hugging Face folder that an adapter belongs to: ``base``, or the one named in the adapter.

    Raises:
        NotFound: the adapter's base is not on this machine; the message says how to name it.
    """
    if base is not None:
        return base
    named = str(_read_config(folder).get("base_model_name_or_path") or "")
    for place in (folder / named, Path(named).expanduser()):
        if named and (place / CONFIG).is_file():
            return place
    raise NotFound(
        f"{folder / PEFT_CONFIG}: base_model_name_or_path is {named!r}, which is not a local folder with {CONFIG}; "
        "name the base's folder with --base"
    )


def read_peft_folder(folder: Path, hub: HubFolder) -> PeftAdapter:
    """Read an adapter for the model of a Hugging Face folder.

    Raises:
        NotFound: there is no ``adapter_model.safetensors``.
        InvalidArgument: the adapter is damaged, of another kind or model, or has an option that is not supported.
    """
    scale = peft_scale(folder / PEFT_CONFIG, allowed=("modules_to_save",))
    if not (folder / PEFT_FILE).is_file():
        raise NotFound(f"{folder} has no {PEFT_FILE}; save the adapter by save_pretrained with safe_serialization")
    with torch.device("meta"):
        model = hub.entry.build(**hub.sizes)
    shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    tied = shared_names(model, hub.hub)
    on_disk = {_in_memory(hub.hub.stored_name(name)): hub.hub.stored_name(name) for name in shapes}
    found: dict[str, torch.Tensor] = {}
    replaced: dict[str, torch.Tensor] = {}
    for stored, tensor in load_parameters(folder / PEFT_FILE)[1].items():
        name = stored.removeprefix(_PREFIX)
        layer, _, part = name.removesuffix(".weight").rpartition(".")
        is_update = f".{part}" in ADAPTER_PARTS[:2]
        asked = f"{layer}.weight" if is_update else name
        wanted = hub.hub.name_of(on_disk.get(asked, asked), shapes) or name
        if wanted not in shapes or (not is_update and "lora_" in name):
            raise InvalidArgument(
                f"{folder / PEFT_FILE}: {stored} does not belong to {hub.entry.name}; expected {_EXPECTED} of that "
                "model"
            )
        if wanted in tied or wanted in tied.values():
            raise InvalidArgument(
                f"{folder / PEFT_FILE}: {stored} changes one of the tensors that the base ties: "
                f"{', '.join(sorted({*tied, *tied.values()}))}; expected an adapter for other layers"
            )
        if not is_update:
            replaced[wanted] = _require_shape(folder, stored, hub.hub.convert(wanted, tensor), shapes[wanted])
            continue
        ours = wanted.removesuffix(".weight")
        outputs, inputs = (*shapes[wanted], 0)[:2]
        legal = (len(tensor), inputs) if part == "lora_A" else (outputs, *tensor.shape[1:2])
        found[f"{ours}.{part}"] = _require_shape(folder, stored, tensor.float(), legal)
        found[ours + ADAPTER_PARTS[2]] = torch.tensor([scale])
    layers = tuple(sorted({name.rpartition(".")[0] for name in found}))
    ranks = {len(value) for name, value in found.items() if name.endswith(".lora_A")}
    ranks |= {value.shape[1] for name, value in found.items() if name.endswith(".lora_B")}
    halves = [layer for layer in layers if any(layer + part not in found for part in ADAPTER_PARTS[:2])]
    if not layers or halves or len(ranks) > 1:
        problem = f"{halves[0]} lacks a half" if halves else f"its ranks are {sorted(ranks) or 'none'}"
        raise InvalidArgument(f"{folder / PEFT_FILE}: {problem}; expected {_EXPECTED}, all of one rank")
    rank = ranks.pop()
    return PeftAdapter(folder, rank, scale * rank, layers, found, replaced)


def write_peft_folder(
    hub: HubFolder, adapters: Tensors, folder: Path, base: Path, replaced: Tensors | None = None
) -> Path:  # fmt: skip
    """Write updates as PEFT does, and tensors that are in place of the base's."""
    folder.mkdir(exist_ok=True)
    found: dict[str, torch.Tensor] = {}
    layers: set[str] = set()
    for name, tensor in adapters.items():
        layer, _, part = name.rpartition(".")
        if part == "lora_scale":
            continue
        stored = _in_memory(hub.hub.stored_name(f"{layer}.weight")).removesuffix(".weight")
        found[f"{_PREFIX}{stored}.{part}.weight"] = tensor.contiguous()
        layers.add(stored)
    heads = {hub.hub.stored_name(name): hub.hub.convert(name, value) for name, value in (replaced or {}).items()}
    found |= {_PREFIX + name: value.contiguous() for name, value in heads.items()}
    rank = next(len(tensor) for name, tensor in adapters.items() if name.endswith(".lora_A"))
    scale = next(float(value) for name, value in adapters.items() if name.endswith(".lora_scale"))
    save_file(found, folder / PEFT_FILE, metadata={"format": "pt"})
    config: dict[str, Any] = {
        "peft_type": "LORA", "task_type": _PEFT_TASKS.get(hub.entry.task),
        "base_model_name_or_path": str(base.resolve()),
        "r": rank, "lora_alpha": scale * rank, "lora_dropout": 0.0, "bias": "none", "inference_mode": True,
        "fan_in_fan_out": bool(hub.hub.transposed), "target_modules": _targets(hub, layers),
        "modules_to_save": sorted({name.rpartition(".")[0] for name in heads}) or None,
    }  # fmt: skip
    write_json_atomic(folder / PEFT_CONFIG, config)
    return folder


def adapter_for(folder: Path, hub: HubFolder, rank: int) -> PeftAdapter | None:
    """Return the adapter that a training continues from; None for a model's folder.

    Raises:
        NotFound, InvalidArgument: as ``read_peft_folder``; or the requested rank is not the adapter's.
    """
    if not is_peft_folder(folder):
        return None
    found = read_peft_folder(folder, hub)
    if rank not in {0, found.rank}:
        raise InvalidArgument(
            f"--lora is {rank}, but the adapter {folder} has rank {found.rank}; leave out --lora, or merge the "
            "adapter first: rdukit checkpoint merge"
        )
    return found


def _in_memory(stored: str) -> str:
    """Return the name in transformers' module of a name on disk."""
    if not stored.startswith("vit."):
        return stored
    for pattern, replacement in _IN_MEMORY:
        stored = re.sub(pattern, replacement, stored)
    return stored


def _targets(hub: HubFolder, layers: set[str]) -> list[str]:
    """Return the ends of the layers' names if they match no other layer, else the full names: PEFT finds layers by
    ends.
    """
    with torch.device("meta"):
        names = [name for name, value in hub.entry.build(**hub.sizes).named_parameters() if value.dim() == 2]
    known = {_in_memory(hub.hub.stored_name(name)).removesuffix(".weight") for name in names}
    ends = {re.split(r"\.\d+\.", name)[-1] for name in layers}
    meant = {name for name in known if any(name == end or name.endswith("." + end) for end in ends)}
    return sorted(ends if meant == layers else layers)


def _require_shape(folder: Path, name: str, tensor: torch.Tensor, wanted: tuple[int, ...]) -> torch.Tensor:
    if tuple(tensor.shape) != wanted:
        raise InvalidArgument(
            f"{folder / PEFT_FILE}: {name} has the shape {list(tensor.shape)}; the model has {list(wanted)}: expected "
            "the adapter's own base (--base)"
        )
    return tensor


def _read_config(folder: Path) -> dict[str, Any]:
    try:
        value = json.loads((folder / PEFT_CONFIG).read_text())
    except (OSError, ValueError) as cause:
        raise InvalidArgument(f"{folder / PEFT_CONFIG} is damaged: {cause}") from cause
    if not isinstance(value, dict):
        raise InvalidArgument(f"{folder / PEFT_CONFIG} is damaged: it holds no JSON object")
    return value
