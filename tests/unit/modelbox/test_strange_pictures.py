"""Pictures and class folders as strangers bring them: wide, transparent and odd files, and odd names."""

import io
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from rdukit.errors import InvalidArgument
from rdukit_modelbox.contract.box import find_box_file, load_box
from rdukit_modelbox.contract.check_parameters import check_parameters
from rdukit_modelbox.contract.parts import Verb
from rdukit_modelbox.preprocessing.arrays import preprocess_arrays
from rdukit_modelbox.preprocessing.picture_folders import picture_classes
from rdukit_serving.raw_inputs.answers import predictions_of
from rdukit_serving.raw_inputs.pictures import BadPicture, PicturePreprocessing, find_picture_preprocessing
from support import shows
from support.boxes import RecordingContext

pytestmark = shows("image-folders")

RGB = PicturePreprocessing(4, 4, 3, True, (0.0,), (1.0,), ("a", "b"))


def encoded(image: Image.Image, kind: str = "PNG", **more: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **more)
    return stream.getvalue()


def colours(content: bytes) -> list[float]:
    return [round(float(value), 3) for value in RGB.array_of(content).reshape(3, -1).mean(1)]


def palette() -> Image.Image:
    image = Image.new("P", (8, 8), 1)
    image.putpalette([0, 0, 0, 0, 255, 0] + [0] * 762)
    return image


HALF = Image.fromarray(np.full((8, 8), 1 << 15, np.uint16))


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (encoded(HALF), [0.502] * 3), (encoded(HALF, "TIFF"), [0.502] * 3),
        (encoded(Image.new("RGBA", (8, 8), (255, 0, 0, 0))), [0, 0, 0]),
        (encoded(Image.new("RGBA", (8, 8), (255, 0, 0, 128))), [0.502, 0, 0]),
        (encoded(Image.new("LA", (8, 8), (255, 0))), [0, 0, 0]),
        (encoded(Image.new("RGB", (8, 8), (255, 0, 0)), transparency=(255, 0, 0)), [0, 0, 0]),
        (encoded(palette()), [0, 1, 0]), (encoded(palette(), transparency=1), [0, 0, 0]),
        (encoded(Image.new("CMYK", (8, 8), (0, 255, 255, 0)), "TIFF"), [1, 0, 0]),
        (encoded(Image.new("CMYK", (8, 8), (0, 0, 0, 0)), "JPEG"), [1, 1, 1]),
        (encoded(Image.new("1", (8, 8), 1)), [1, 1, 1]), (encoded(Image.new("RGB", (1, 1), "red")), [1, 0, 0]),
        (encoded(Image.new("RGB", (8, 8), "red"), save_all=True, append_images=[Image.new("RGB", (8, 8), "blue")]),
         [1, 0, 0]),
    ],
)  # fmt: skip
def test_a_picture_of_any_mode_has_its_colours_on_black(content: bytes, expected: list[float]) -> None:
    assert colours(content) == expected


@pytest.mark.parametrize(("dtype", "words"), [(np.float32, "its values are floats"), (np.int32, "numbers of 32 bits")])
def test_values_of_no_known_range_are_refused(dtype: Any, words: str) -> None:
    with pytest.raises(BadPicture, match=f"{words}; expected 8 or 16 bits a channel"):
        RGB.array_of(encoded(Image.fromarray(np.full((8, 8), 1, dtype)), "TIFF"))


def folder(path: Path, *names: str | bytes) -> Path:
    for number, name in enumerate(names):
        place = os.fsencode(path) + b"/" + (name.encode() if isinstance(name, str) else name)
        os.makedirs(place)
        for at in range(4):
            Image.new("RGB", (8, 8), (number * 9, 0, 0)).save(os.fsdecode(place + b"/%d.png" % at))
    return path


def test_a_folder_that_would_be_ignored_is_refused(tmp_path: Path) -> None:
    data = folder(tmp_path / "in", "a", "b")
    (data / ".cache").mkdir()
    assert picture_classes(data) == ("a", "b")
    (data / "c").mkdir()
    (data / "c" / "1.heic").write_bytes(b"none")
    with pytest.raises(
        InvalidArgument, match=r"c has no picture that can be read; expected a folder with PNG.* no oth"
    ):
        picture_classes(data)
    (data / "c" / "1.heic").unlink()
    (data / "c").rmdir()
    (data / "d").symlink_to(data / "a")
    with pytest.raises(InvalidArgument, match="d is a link, which is not followed; expected a folder"):
        picture_classes(data)


def test_a_name_that_is_no_text_is_refused_and_odd_names_are_kept(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"caf\?/0\.png: the name of its folder is not UTF-8; expected another"):
        picture_classes(folder(tmp_path / "bytes", b"caf\xe9", "b"))
    names = sorted(["a, b", 'q"uo', "ümläut", "new\nline", "%41", "-dash"])
    assert picture_classes(folder(tmp_path / "odd", *names)) == tuple(names)


def test_a_class_without_pictures_to_train_on_is_reported(tmp_path: Path) -> None:
    data = folder(tmp_path / "in", "train/a", "train/b", "test/a", "test/c")
    box = load_box(find_box_file("vit"))
    sizes = {"image_size": 8, "patch_size": 4, "channels": 3, "num_classes": 3}
    context = RecordingContext(box)
    (tmp_path / "out").mkdir()
    parameters = check_parameters(box, Verb.PREPROCESS, sizes)
    preprocess_arrays(context, parameters, {"data": data}, tmp_path / "out")
    assert any("class 'c' has no picture to train on" in line for line in context.lines)
    made = find_picture_preprocessing(tmp_path / "out" / "dataset")
    assert made is not None and made.classes == ("a", "b", "c")


def test_two_classes_of_one_name_keep_their_probabilities() -> None:
    (found,) = predictions_of(("crane", "heron", "crane"), np.log(np.array([[0.7, 0.1, 0.2]])))
    assert found.label == "crane (0)"
    assert found.probability == pytest.approx(0.7)
    assert found.probabilities == pytest.approx({"crane (0)": 0.7, "heron": 0.1, "crane (2)": 0.2})
