"""``preprocessor_config.json`` of a Hugging Face folder: how its pictures become arrays, to train and to serve.

Source: transformers' image processors of ViT; keys that they do not read are ignored.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from rdukit.errors import InvalidArgument
from rdukit_modelbox.contract.allowed_values import ParameterValue
from rdukit_modelbox.preprocessing.picture_folders import NORMALISATIONS, preprocessing_of
from rdukit_serving.raw_inputs.pictures import RESAMPLES, PicturePreprocessing
from rdukit_zoo.checkpoints.folder import HubFolder, identity_of, read_optional_json

PROCESSOR: Final = "preprocessor_config.json"
#: Pillow's numbers of ``resample``.
_RESAMPLES: Final = tuple(sorted(RESAMPLES, key=lambda name: int(RESAMPLES[name])))
#: Steps that must be on, as files have any size and values of a byte.
_NEEDED: Final = ("do_resize", "do_rescale")


def picture_parameters(hub: HubFolder) -> dict[str, ParameterValue]:
    """Return the processor's preprocessing of pictures as parameters of preprocess.

    A folder without one squashes pictures to the model's size, and takes values to -1..1.

    Raises:
        InvalidArgument: the processor is damaged, needs unknown steps or another normalisation, or has another size
            than the model.
    """
    path = hub.path / PROCESSOR
    said = read_optional_json(path)
    for name in _NEEDED:
        if said.get(name, True) is not True:
            raise InvalidArgument(f"{path}: {name} is {said[name]!r}; expected true")
    factor = said.get("rescale_factor", 1 / 255)
    if not isinstance(factor, int | float) or abs(factor * 255 - 1) > 1e-6:
        raise InvalidArgument(f"{path}: rescale_factor is {factor!r}; expected 1/255")
    number = said.get("resample", _RESAMPLES.index("bilinear"))
    if type(number) is not int or not 0 <= number < len(_RESAMPLES):
        raise InvalidArgument(f"{path}: resample is {number!r}; expected 0 to 5: {', '.join(_RESAMPLES)}")
    crops = bool(said.get("do_center_crop"))
    side = int(hub.sizes["image_size"])
    return {
        "image_normalize": _normalisation(said, path), "image_fit": "crop" if crops else "squash",
        "image_resample": _RESAMPLES[number], "image_shorter_side": _shorter_side(said, path, side, crops),
    }  # fmt: skip


def _normalisation(said: Mapping[str, Any], path: Path) -> str:
    mean, deviation = said.get("image_mean", [0.5]), said.get("image_std", [0.5])
    try:
        asked = (_each(mean), _each(deviation)) if said.get("do_normalize", True) else NORMALISATIONS["none"]
    except ValueError:
        asked = None
    name = next((name for name, known in NORMALISATIONS.items() if known == asked), None)
    if name is None:
        legal = "; ".join(f"{name}: {mean}, {std}" for name, (mean, std) in NORMALISATIONS.items())
        raise InvalidArgument(f"{path}: image_mean {mean} with image_std {deviation}; expected one of {legal}")
    return name


def _each(values: object) -> tuple[float, ...]:
    found = tuple(map(float, values)) if isinstance(values, list) else (float(str(values)),)
    return found[:1] if len(set(found)) == 1 else found


def _shorter_side(said: Mapping[str, Any], path: Path, side: int, crops: bool) -> int:
    """Return the length to which the shorter side is resized before the middle is cut out; 0 if both sides get the
    model's length.

    Raises:
        InvalidArgument: the arrays would have another size than the model takes.
    """
    size, crop = said.get("size", side), said.get("crop_size", side)
    shorter = size.get("shortest_edge") if isinstance(size, dict) else None
    if crops and _sides(crop) == {side} and (shorter is not None or _sides(size) == {side}):
        found = side if shorter is None else shorter
        if type(found) is int and side <= found <= 16 * side:
            return found if shorter is not None else 0
    if not crops and _sides(size) == {side}:
        return 0
    raise InvalidArgument(
        f"{path}: size {json.dumps(size)}{f', crop_size {json.dumps(crop)}' if crops else ''}; expected the model's "
        f"size {side} x {side}: height and width {side}, or a shortest_edge of {side} or more with "
        f"do_center_crop and crop_size {side}"
    )


def _sides(size: object) -> set[object]:
    """Return the sides that a size has: a number, or height and width."""
    return {size.get("height"), size.get("width")} if isinstance(size, dict) else {size}


def preprocessing_of_folder(hub: HubFolder) -> PicturePreprocessing | None:
    """Return the served folder's preprocessing of pictures; None if it has no processor, or no names of classes.

    Raises:
        InvalidArgument: as ``picture_parameters``.
    """
    classes = identity_of(hub).classes
    if not (hub.path / PROCESSOR).is_file() or len(classes) != hub.sizes["num_classes"]:
        return None
    side = int(hub.sizes["image_size"])
    return preprocessing_of((int(hub.sizes["channels"]), side, side), classes, picture_parameters(hub))
