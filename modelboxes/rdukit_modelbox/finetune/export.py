"""A trained checkpoint as a Hugging Face folder: weights, and beside them all that the original folder had to say.

Updates of low rank are added to the weights; they also become a folder as PEFT writes it.
"""

import json
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import save_file

from rdukit.files.atomic import write_json_atomic
from rdukit.pef.checkpoint_files import ADAPTER_PARTS, PICTURE_FILE, picture_file
from rdukit_serving.device.parameters import Tensors, load_parameters, merge_adapters
from rdukit_serving.raw_inputs.pictures import find_picture_preprocessing
from rdukit_zoo.checkpoints.folder import CONFIG, HubFolder, drawing_nothing, identity_of, save_hub_folder, tie_again
from rdukit_zoo.registry import SizeValue

#: Files of the original folder that hold for the trained model, too: tokenizer, templates, generation, licence.
KEPT: Final = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "tokenizer.model",
    "preprocessor_config.json",
    "vocab.json", "merges.txt", "vocab.txt", "spiece.model", "chat_template.jinja", "generation_config.json",
    "LICENSE*", "LICENCE*", "NOTICE*", "USE_POLICY*", "additional_chat_templates/*.jinja",
)  # fmt: skip
#: PEFT's names of tasks; it has none for pictures.
_PEFT_TASKS: Final = {"language-modelling": "CAUSAL_LM", "sequence-classification": "SEQ_CLS"}
#: Keys of ``config.json`` that the export writes anew, or that hold for the original weights alone.
_REPLACED: Final = frozenset({"torch_dtype", "quantization_config", "num_labels"})
#: Folder of the updates in the output, and the names that PEFT gives its files.
ADAPTER: Final = "adapter"
_ADAPTER_CONFIG: Final = "adapter_config.json"
_ADAPTER_WEIGHTS: Final = "adapter_model.safetensors"


def export_folder(
    hub: HubFolder, sizes: Mapping[str, SizeValue], checkpoint: Path, output: Path,
    classes: Sequence[str] | None = None, *, lora_alpha: float,
) -> Path | None:  # fmt: skip
    """Write the trained weights as a Hugging Face folder; returns the folder of the updates, if there are any.

    ``config.json`` is the original one, with the dtype of the weights and the names of the ``classes``: a training
    changes no size but their number.

    Raises:
        NotFound, InvalidArgument: there is no checkpoint, it is damaged, or not of this model.
    """
    tensors = dict(load_parameters(checkpoint)[1])
    identity = identity_of(hub)
    with drawing_nothing():
        model = hub.entry.build(**sizes)
    model.load_state_dict(merge_adapters(tensors), assign=True)
    tie_again(model, hub)
    save_hub_folder(model, hub.entry, sizes, output, classes or (), identity.tokenizer)
    written = json.loads((output / CONFIG).read_text())
    original = {key: value for key, value in hub.config.items() if key not in _REPLACED}
    named = {"dtype": written["dtype"]}
    if classes is not None:
        names = classes or [f"LABEL_{number}" for number in range(int(sizes["num_classes"]))]
        named |= {"id2label": dict(enumerate(names)), "label2id": {name: k for k, name in enumerate(names)}}
    write_json_atomic(output / CONFIG, {**original, **named})
    for pattern in KEPT:
        for path in sorted(hub.path.glob(pattern)):
            target = output / path.relative_to(hub.path)
            target.parent.mkdir(exist_ok=True)
            shutil.copyfile(path, target)
    if classes is None:
        _name_ends(hub, output)
    elif picture_file(checkpoint).is_file():
        shutil.copyfile(picture_file(checkpoint), output / PICTURE_FILE)
        _write_processor(hub, checkpoint, output)
    adapters = {name: tensor for name, tensor in tensors.items() if name.endswith(ADAPTER_PARTS)}
    return _write_adapter(hub, adapters, output / ADAPTER, lora_alpha) if adapters else None


def _write_processor(hub: HubFolder, checkpoint: Path, output: Path) -> None:
    """Write ``preprocessor_config.json`` where the folder had none: as pictures were made arrays for the training."""
    known = find_picture_preprocessing(checkpoint)
    if known is None or (hub.path / "preprocessor_config.json").is_file():
        return
    each = known.channels
    processor = {
        "image_processor_type": "ViTImageProcessor", "do_resize": True, "do_rescale": True, "do_normalize": True,
        "size": {"height": known.height, "width": known.width}, "resample": 2,
        "image_mean": list(known.mean * each)[:each], "image_std": list(known.deviation * each)[:each],
    }  # fmt: skip
    write_json_atomic(output / "preprocessor_config.json", processor)


def _name_ends(hub: HubFolder, output: Path) -> None:
    """Write ``generation_config.json`` where the folder had none: generation ends where ``config.json`` says."""
    path = output / "generation_config.json"
    if path.exists():
        return
    known = {key: hub.config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id") if key in hub.config}
    write_json_atomic(path, {"_from_model_config": True, **known})


def _write_adapter(hub: HubFolder, adapters: Tensors, folder: Path, alpha: float) -> Path:
    """Write updates as PEFT does. Source: peft, "Checkpoint format"."""
    folder.mkdir(exist_ok=True)
    found: dict[str, torch.Tensor] = {}
    layers: set[str] = set()
    for name, tensor in adapters.items():
        layer, _, part = name.rpartition(".")
        if part == "lora_scale":
            continue
        stored = hub.hub.stored_name(f"{layer}.weight").removesuffix(".weight")
        found[f"base_model.model.{stored}.{part}.weight"] = tensor.contiguous()
        layers.add(stored)
    rank = next(tensor.shape[0] for name, tensor in adapters.items() if name.endswith(".lora_A"))
    save_file(found, folder / _ADAPTER_WEIGHTS, metadata={"format": "pt"})
    config: dict[str, Any] = {
        "peft_type": "LORA", "task_type": _PEFT_TASKS.get(hub.entry.task),
        "base_model_name_or_path": str(hub.path.resolve()),
        "r": rank, "lora_alpha": alpha, "lora_dropout": 0.0, "bias": "none", "inference_mode": True,
        "fan_in_fan_out": bool(hub.hub.transposed), "target_modules": sorted({_last(name) for name in layers}),
    }  # fmt: skip
    write_json_atomic(folder / _ADAPTER_CONFIG, config)
    return folder


def _last(name: str) -> str:
    """Return the part of a layer's name that all blocks share, as PEFT finds layers by the end of their names."""
    return re.split(r"\.\d+\.", name)[-1]
