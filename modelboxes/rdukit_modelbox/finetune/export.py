"""A trained checkpoint as a Hugging Face folder: weights and the original folder's other files.

Updates of low rank are added to the weights; they also become a folder as PEFT writes it.
"""

import json
import shutil
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Final

import torch

from rdukit.errors import Conflict, InvalidArgument
from rdukit.files.atomic import write_json_atomic
from rdukit.pef.checkpoint_files import ADAPTER_PARTS, PICTURE_FILE, picture_file
from rdukit_modelbox.finetune.peft_folder import base_of, is_peft_folder, read_peft_folder, write_peft_folder
from rdukit_modelbox.tasks.frozen_weights import thawed
from rdukit_serving.device.adapters import read_adapter
from rdukit_serving.device.parameters import Tensors, load_parameters, merge_adapters
from rdukit_serving.raw_inputs.pictures import RESAMPLES, find_picture_preprocessing
from rdukit_zoo.checkpoints.folder import (
    CONFIG,
    HubFolder,
    drawing_nothing,
    identity_of,
    load_hub_folder,
    open_hub_folder,
    save_hub_folder,
    tie_again,
)
from rdukit_zoo.registry import TEXT_TO_TEXT, SizeValue

#: Files of the original folder that hold for the trained model, too: tokenizer, templates, generation, licence.
KEPT: Final = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "tokenizer.model",
    "preprocessor_config.json", "spiece.model", "sentencepiece.bpe.model",
    "vocab.json", "merges.txt", "vocab.txt", "chat_template.jinja", "generation_config.json",
    "LICENSE*", "LICENCE*", "NOTICE*", "USE_POLICY*", "additional_chat_templates/*.jinja",
)  # fmt: skip
#: Keys of ``config.json`` that the export rewrites, or that apply only to the original weights.
_REPLACED: Final = frozenset({"torch_dtype", "quantization_config", "num_labels"})
#: Folder of the updates in the output.
ADAPTER: Final = "adapter"


def export_folder(
    hub: HubFolder, sizes: Mapping[str, SizeValue], checkpoint: Path, output: Path,
    classes: Sequence[str] | None = None, replaced: Collection[str] = (),
) -> Path | None:  # fmt: skip
    """Write the trained weights as a Hugging Face folder; returns the folder of the updates, if there are any.

    Args:
        replaced: names of tensors that the adapter before the training had in place of the base's.
    Raises:
        NotFound, InvalidArgument: there is no checkpoint, it is damaged, or not of this model.
    """
    tensors = thawed(load_parameters(checkpoint)[1])
    write_folder(hub, sizes, merge_adapters(tensors), output, classes)
    if classes is None:
        if hub.entry.task != TEXT_TO_TEXT:  # of those, config.json says all without the file
            _name_ends(hub, output)
    elif picture_file(checkpoint).is_file():
        shutil.copyfile(picture_file(checkpoint), output / PICTURE_FILE)
        _write_processor(hub, checkpoint, output)
    adapters = {name: tensor for name, tensor in tensors.items() if name.endswith(ADAPTER_PARTS)}
    if not adapters:
        return None
    kept = {name: tensors[name] for name in replaced}
    return write_peft_folder(hub, adapters, output / ADAPTER, hub.path, kept)


def write_folder(
    hub: HubFolder, sizes: Mapping[str, SizeValue], tensors: Tensors, output: Path, classes: Sequence[str] | None
) -> None:  # fmt: skip
    """Write parameters as a Hugging Face folder, with the original folder's other files.

    ``config.json`` is the original one, with the dtype of the weights and the names of the ``classes``; a training
    changes only their number.
    """
    identity = identity_of(hub)
    with drawing_nothing():
        model = hub.entry.build(**sizes)
    model.load_state_dict(dict(tensors), assign=True)
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


def merge_folder(adapter: Path, target: Path, base: Path | None = None) -> tuple[HubFolder, int]:
    """Add an adapter to its base, in the dtype of the base's weights, and write a Hugging Face folder.

    ``adapter`` is a folder of PEFT, or a checkpoint of a training with ``lora_rank``, which needs ``base``. Sums are
    computed in f32. Returns the base and the number of layers that changed.

    Raises:
        Conflict: ``target`` exists.
        NotFound, InvalidArgument: base or adapter are missing, damaged, or of different models.
    """
    if target.exists():
        raise Conflict(f"{target} exists already; name another target")
    is_peft = is_peft_folder(adapter)
    if not is_peft and base is None:
        raise InvalidArgument(f"{adapter} has no adapter_config.json; name the folder of its base weights with --base")
    hub = open_hub_folder(base_of(adapter, base) if is_peft or base is None else base)
    refuse_code(hub)
    weights: dict[str, torch.Tensor] = dict(load_hub_folder(hub.path, rounds_tables=False).state_dict())
    if is_peft:
        known = read_peft_folder(adapter, hub)
        weights |= {name: value.to(weights[name].dtype) for name, value in known.replaced.items()}
        weights |= known.tensors
        count = len(known.layers)
    else:
        updates, others = read_adapter(adapter)
        compared = {name: value for name, value in others.items() if not hub.hub.is_table(name)}
        changed = [n for n, v in compared.items() if n not in weights or not torch.equal(v.float(), weights[n].float())]
        if changed:
            raise InvalidArgument(
                f"{adapter} was trained with other base weights than {hub.path}: {changed[0]} differs; expected its "
                "own base"
            )
        for layer, update in updates.items():
            weights |= dict(zip((layer + part for part in ADAPTER_PARTS), update, strict=True))
        count = len(updates)
    classes = identity_of(hub).classes if "num_classes" in hub.sizes else None
    unfinished = target.with_name(f".{target.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    write_folder(hub, hub.sizes, merge_adapters(weights), unfinished, classes)
    unfinished.rename(target)
    return hub, count


def refuse_code(hub: HubFolder) -> None:
    """Refuse a folder whose model needs code of its own.

    Raises:
        InvalidArgument: ``config.json`` has ``auto_map``.
    """
    if hub.config.get("auto_map"):
        raise InvalidArgument(
            f"{hub.path}/config.json has auto_map: the model needs its own code, which rdukit does not run; expected "
            "a folder for one of transformers' own classes"
        )


def _write_processor(hub: HubFolder, checkpoint: Path, output: Path) -> None:
    """Write ``preprocessor_config.json`` with the training's preprocessing of pictures if the folder had none."""
    known = find_picture_preprocessing(checkpoint)
    if known is None or (hub.path / "preprocessor_config.json").is_file():
        return
    each = known.channels
    processor = {
        "image_processor_type": "ViTImageProcessor", "do_resize": True, "do_rescale": True, "do_normalize": True,
        "size": {"height": known.height, "width": known.width}, "resample": int(RESAMPLES[known.resample]),
        "image_mean": list(known.mean * each)[:each], "image_std": list(known.deviation * each)[:each],
    }  # fmt: skip
    write_json_atomic(output / "preprocessor_config.json", processor)


def _name_ends(hub: HubFolder, output: Path) -> None:
    """Write ``generation_config.json`` with the end tokens of ``config.json`` if the folder had none."""
    path = output / "generation_config.json"
    if path.exists():
        return
    known = {key: hub.config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id") if key in hub.config}
    write_json_atomic(path, {"_from_model_config": True, **known})
