"""``preprocessor_config.json``: size, resample and normalisation of a folder hold in finetune and when it is served.

Arrays are those of transformers' own processors, which resize by Pillow, too: equal to 1e-6.
"""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from rdukit.errors import InvalidArgument
from rdukit_modelbox.artifacts.hub_folder import limited_sizes, write_checkpoint
from rdukit_modelbox.finetune.run import open_model
from rdukit_modelbox.preprocessing.picture_folders import preprocessing_of
from rdukit_modelbox.preprocessing.picture_processor import picture_parameters
from rdukit_serving.raw_inputs.pictures import find_picture_preprocessing
from support import shows

pytestmark = shows("finetune", "image-folders", "vit")

transformers = pytest.importorskip("transformers", reason="the extra `models` is not installed")

SIDE = 16
SQUASHED = {"do_resize": True, "size": {"height": SIDE, "width": SIDE}, "resample": 3, "image_mean": [0.5] * 3}
CROPPED = {
    "do_resize": True, "size": {"shortest_edge": 20}, "do_center_crop": True, "resample": 1,
    "crop_size": {"height": SIDE, "width": SIDE}, "image_mean": [0.485, 0.456, 0.406],
    "image_std": [0.229, 0.224, 0.225],
}  # fmt: skip


def write_vit(folder: Path, processor: dict[str, Any]) -> None:
    configuration = transformers.ViTConfig(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=64, image_size=SIDE,
        patch_size=8, id2label={0: "cat", 1: "dog"}, label2id={"cat": 0, "dog": 1},
    )  # fmt: skip
    transformers.ViTForImageClassification(configuration).save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))


def picture() -> bytes:
    values = np.random.default_rng(0).integers(0, 256, (23, 37, 3), np.uint8)
    stream = io.BytesIO()
    Image.fromarray(values).save(stream, "PNG")
    return stream.getvalue()


def arrays_of_transformers(processor: dict[str, Any]) -> Any:
    known = {"image_std": [0.5] * 3, "do_rescale": True, "do_normalize": True, **processor}
    kind = "CLIPImageProcessorPil" if processor.get("do_center_crop") else "ViTImageProcessorPil"
    made = getattr(transformers, kind)(**known)
    return made(Image.open(io.BytesIO(picture())), return_tensors="np")["pixel_values"][0]


@pytest.mark.parametrize("processor", [SQUASHED, CROPPED], ids=["squashed", "cropped"])
def test_arrays_are_those_of_transformers_to_train_and_to_serve(tmp_path: Path, processor: dict[str, Any]) -> None:
    write_vit(tmp_path / "vit", processor)
    hub = open_model(tmp_path / "vit")
    trained = preprocessing_of((3, SIDE, SIDE), ("cat", "dog"), picture_parameters(hub))
    wanted = arrays_of_transformers(processor)
    np.testing.assert_allclose(trained.array_of(picture()), wanted, atol=1e-6)
    write_checkpoint(hub, limited_sizes(hub.entry, hub.sizes), tmp_path / "checkpoint")
    assert find_picture_preprocessing(tmp_path / "checkpoint") == trained, "the served folder does the same"


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (
            {"size": {"height": 24, "width": 24}},
            r'size \{"height": 24, "width": 24\}; expected the model.s size 16 x 16',
        ),
        ({"size": {"shortest_edge": 16}}, "do_center_crop and crop_size 16"),
        ({"resample": 9}, "resample is 9; expected 0 to 5: nearest, lanczos"),
        ({"do_rescale": False}, "do_rescale is False; expected true"),
        ({"rescale_factor": 1.0}, "rescale_factor is 1.0; expected 1/255"),
        ({"image_mean": [0.1, 0.2, 0.3]}, "expected one of half"),
    ],
)
def test_a_processor_that_cannot_be_followed_is_refused(tmp_path: Path, changed: dict[str, Any], words: str) -> None:
    write_vit(tmp_path / "vit", {**SQUASHED, **changed})
    with pytest.raises(InvalidArgument, match=words):
        picture_parameters(open_model(tmp_path / "vit"))
