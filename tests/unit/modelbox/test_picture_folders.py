"""Folders of pictures become arrays by the file that is kept for serving."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from rdukit.errors import InvalidArgument, PefMismatch
from rdukit_modelbox.contract.box import find_box_file, load_box
from rdukit_modelbox.contract.check_parameters import check_parameters
from rdukit_modelbox.contract.parts import Verb
from rdukit_modelbox.preprocessing.arrays import ArrayDataset, preprocess_arrays
from rdukit_modelbox.verbs.context import VerbResult
from rdukit_serving.raw_inputs.pictures import (
    BadPicture,
    PicturePreprocessing,
    decode_pictures,
    find_picture_preprocessing,
    read_pictures,
    write_picture_file,
)
from support import shows
from support.boxes import RecordingContext

pytestmark = shows("image-folders", "preprocess", "vit")

SIZES = {"image_size": 8, "patch_size": 4, "channels": 3, "num_classes": 2}


def write(folder: Path, name: str, size: tuple[int, int] = (12, 9), colour: str = "red", mode: str = "RGB") -> bytes:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).convert(mode).save(path)
    return path.read_bytes()


def preprocess(folder: Path, **changed: Any) -> VerbResult:
    box = load_box(find_box_file("vit"))
    parameters = check_parameters(box, Verb.PREPROCESS, {**SIZES, "test_ratio": 0.25, **changed})
    (folder / "out").mkdir(exist_ok=True)
    return preprocess_arrays(RecordingContext(box), parameters, {"data": folder / "in"}, folder / "out")


def pictures(folder: Path, prefix: str = "") -> dict[str, bytes]:
    kinds = (("cat", "red"), ("dog", "blue"))
    names = {f"{prefix}{kind}/{n}.png": (kind, n, colour) for kind, colour in kinds for n in range(4)}
    return {name: write(folder / "in", name, (9 + n, 12 - n), colour) for name, (_, n, colour) in names.items()}


def test_the_file_makes_the_arrays_that_the_model_was_trained_on(tmp_path: Path) -> None:
    files = pictures(tmp_path)
    done = preprocess(tmp_path)
    made = find_picture_preprocessing(tmp_path / "out" / "dataset")
    assert made is not None
    assert made.classes == ("cat", "dog")
    assert (done.figures["train_samples"], done.figures["test_samples"]) == (6, 2)
    kept = [np.load(tmp_path / f"out/dataset/{split}/image.npy") for split in ("train", "test")]
    served = read_pictures(made, list(files.values()), (3, 8, 8))
    assert sorted(a.tobytes() for a in np.concatenate(kept)) == sorted(a.tobytes() for a in served)
    assert served[0][:, 0, 0].tolist() == [1.0, -1.0, -1.0]
    labels = np.concatenate([np.load(tmp_path / f"out/dataset/{split}/label.npy") for split in ("train", "test")])
    assert sorted(labels.tolist()) == [0] * 4 + [1] * 4


def test_folders_named_train_and_test_are_the_splits(tmp_path: Path) -> None:
    pictures(tmp_path, "train/")
    write(tmp_path / "in", "test/dog/9.png", colour="blue")
    done = preprocess(tmp_path)
    assert (done.figures["train_samples"], done.figures["test_samples"]) == (8, 1)
    assert np.load(tmp_path / "out/dataset/test/label.npy").tolist() == [1]


@pytest.mark.parametrize(
    ("name", "content", "changed", "words"),
    [
        ("top.png", None, {}, r"top\.png: the picture is not in a class folder; expected CLASS/top\.png"),
        ("train/x.png", None, {}, "not in a class folder"),
        ("dog/bad.png", b"none", {}, r"dog/bad\.png: not readable as an image; expected PNG"),
        ("emu/1.png", None, {}, r"3 folders of pictures \(cat, dog, emu\), the model has 2 classes.*num_classes=3"),
        ("dog/8.png", None, {"num_classes": 5}, "2 folders of pictures .*, the model has 5 classes"),
        ("dog/8.png", None, {"channels": 2}, "the model expects 2 channels, but pictures have 1 .grey. or 3"),
        ("dog/8.png", None, {"channels": 1, "image_normalize": "imagenet"}, "image_normalize=imagenet is only for rgb"),
    ],
)
def test_a_folder_that_cannot_be_used_is_refused_with_the_file(
    tmp_path: Path, name: str, content: bytes | None, changed: dict[str, Any], words: str
) -> None:
    pictures(tmp_path)
    write(tmp_path / "in", name)
    if content is not None:
        (tmp_path / "in" / name).write_bytes(content)
    with pytest.raises(InvalidArgument, match=words):
        preprocess(tmp_path, **changed)


def test_arrays_in_the_same_place_leave_no_file_of_pictures_behind(tmp_path: Path) -> None:
    pictures(tmp_path)
    preprocess(tmp_path)
    for path in sorted((tmp_path / "in").rglob("*.png")):
        path.unlink()
    np.save(tmp_path / "in/image.npy", np.zeros((4, 3, 8, 8), np.float32))
    np.save(tmp_path / "in/label.npy", np.array([0, 1, 0, 1]))
    preprocess(tmp_path)
    assert find_picture_preprocessing(tmp_path / "out" / "dataset") is None


MADE = PicturePreprocessing(4, 6, 3, True, (0.0,), (1.0,), ("a", "b"))


def test_a_picture_is_upright_in_the_models_colours_and_its_middle_is_taken(tmp_path: Path) -> None:
    wide = Image.new("RGB", (18, 4), "black")
    wide.paste("white", (6, 0, 12, 4))
    stream = io.BytesIO()
    wide.save(stream, "PNG")
    assert MADE.array_of(stream.getvalue()).min() == 1.0, "the middle third"
    squashed = PicturePreprocessing(4, 6, 3, False, (0.0,), (1.0,), ("a", "b")).array_of(stream.getvalue())
    assert squashed[:, :, 0].max() == 0.0
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned by a quarter
    turned = Image.new("RGB", (4, 6), "black")
    turned.paste("white", (0, 0, 4, 3))
    stream = io.BytesIO()
    turned.save(stream, "PNG", exif=exif)
    found = MADE.array_of(stream.getvalue())
    assert (found[:, :, :3].max(), found[:, :, 3:].min()) == (0.0, 1.0)
    grey = PicturePreprocessing(4, 6, 1, True, (0.0,), (1.0,), ("a", "b"))
    for mode in ("L", "P", "RGBA", "1"):
        assert grey.array_of(write(tmp_path, f"{mode}.png", colour="white", mode=mode)).shape == (1, 4, 6)


def test_a_strip_that_would_grow_with_its_shorter_side_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rdukit_serving.raw_inputs.pictures.MAX_PIXELS", 1500)
    made = PicturePreprocessing(4, 6, 3, True, (0.0,), (1.0,), ("a", "b"), "bilinear", 8)
    assert made.array_of(write(tmp_path, "short.png", (2, 40))).shape == (3, 4, 6)  # 8 x 160
    with pytest.raises(BadPicture, match="2 x 60 pixels, 8 x 240 once its shorter side is 8; expected at most 1500"):
        made.array_of(write(tmp_path, "long.png", (2, 60)))


@pytest.mark.parametrize("content", [b"", b"GIF89a", b"<svg/>", b"%PDF-1.4", b"\x89PNG\r\n\x1a\n" + b"\0" * 40])
def test_what_is_no_picture_is_refused(content: bytes) -> None:
    with pytest.raises(BadPicture, match="expected PNG"):
        MADE.array_of(content)
    with pytest.raises(InvalidArgument, match="picture 0: not readable as an image; expected PNG"):
        read_pictures(MADE, [content], (3, 4, 6))


@pytest.mark.parametrize(
    "value", [[], {}, {"images": "x"}, {"images": [], "more": 1}, {"images": ["?"]}, {"images": [1]}]
)
def test_a_request_of_another_form_is_refused(value: object) -> None:
    with pytest.raises(InvalidArgument, match=r"the request must be|is not base64"):
        decode_pictures(value)


def test_a_file_of_another_model_or_version_is_refused(tmp_path: Path) -> None:
    write_picture_file(tmp_path, MADE)
    assert find_picture_preprocessing(tmp_path) == MADE
    (tmp_path / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    for values, classes, words in ((71, 2, "values is 72, but 71 in"), (72, 3, "classes is 2, but 3 in")):
        with pytest.raises(PefMismatch, match=words):
            MADE.check_model(values, classes, tmp_path / "model.safetensors", "it")
    path = tmp_path / "picture_preprocessing.json"
    value = json.loads(path.read_text())
    for changed, words in (
        ({**value, "version": 3}, "has version 3; expected 1 or 2"),
        ({**value, "version": 2, "resample": "magic"}, "damaged"),
        ({"version": 1}, "damaged"),
        ([], "damaged"),
    ):
        path.write_text(json.dumps(changed))
        with pytest.raises(InvalidArgument, match=words):
            find_picture_preprocessing(tmp_path)


def counts_of(folder: Path, *names: str) -> dict[str, object]:
    for name in names:
        for kind, colour in (("cat", "red"), ("dog", "blue")):
            write(folder / "in", f"{name}/{kind}/{len(name)}.png", colour=colour)
    return {name: value for name, value in preprocess(folder).figures.items() if name.endswith("_samples")}


def test_a_folder_to_validate_is_never_trained_on(tmp_path: Path) -> None:
    three = counts_of(tmp_path / "three", "train", "valid", "test")
    assert three == {"train_samples": 2, "dev_samples": 2, "test_samples": 2}
    manifest = json.loads((tmp_path / "three/out/dataset/manifest.json").read_text())
    data = ArrayDataset(tmp_path / "three/out/dataset", manifest)
    assert (data.count("train"), data.count("dev"), data.count("test")) == (2, 2, 2)
    assert counts_of(tmp_path / "two", "train", "val") == {"train_samples": 2, "test_samples": 2}


def test_a_class_that_is_called_like_a_split_is_a_class(tmp_path: Path) -> None:
    for kind in ("trains", "testtubes"):
        for number in range(4):
            write(tmp_path / "in", f"{kind}/{number}.png")
    assert preprocess(tmp_path).figures["train_samples"] == 6
    labels = np.concatenate([np.load(tmp_path / f"out/dataset/{split}/label.npy") for split in ("train", "test")])
    assert sorted(labels.tolist()) == [0] * 4 + [1] * 4
    assert len(np.load(tmp_path / "out/dataset/test/label.npy")) == 2
