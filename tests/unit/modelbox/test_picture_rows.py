"""Pictures in Parquet, HDF5 and arrays of uint8, and the augmentation of training pictures."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as arrow
import pyarrow.parquet as parquet
import pytest
import torch
from PIL import Image

from rdukit.errors import InvalidArgument
from rdukit_modelbox.contract.box import find_box_file, load_box
from rdukit_modelbox.contract.check_parameters import check_parameters
from rdukit_modelbox.contract.parts import Verb
from rdukit_modelbox.preprocessing.arrays import ArrayDataset, preprocess_arrays
from rdukit_modelbox.preprocessing.augmentation import augmentation_parameters
from rdukit_modelbox.preprocessing.datasets import MANIFEST
from rdukit_modelbox.preprocessing.picture_rows import classes_of_pictures
from rdukit_modelbox.verbs.context import VerbResult
from rdukit_serving.raw_inputs.pictures import find_picture_preprocessing
from support import shows
from support.boxes import RecordingContext
from support.vision import transforms_or_skip

pytestmark = shows("image-folders", "preprocess", "vit")

SIZES = {"image_size": 8, "patch_size": 4, "channels": 3, "num_classes": 2}
PICTURES = np.random.default_rng(0).integers(0, 256, (8, 8, 8, 3), np.uint8)
LABELS = np.arange(8) % 2
Write = Callable[[Path], Path]


def preprocess(data: Path, output: Path, **changed: Any) -> VerbResult:
    box = load_box(find_box_file("vit"))
    parameters = check_parameters(box, Verb.PREPROCESS, {**SIZES, "test_ratio": 0.25, **changed})
    output.mkdir(exist_ok=True)
    return preprocess_arrays(RecordingContext(box), parameters, {"data": data}, output)


def png(values: Any) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(values).save(stream, "PNG")
    return stream.getvalue()


def write_parquet(folder: Path, image: Any = None, label: Any = None, **features: Any) -> Path:
    """Write a table as Hugging Face datasets do: a struct of bytes and path, and the features in the schema."""
    images = arrow.array([{"bytes": png(one), "path": None} for one in PICTURES]) if image is None else image
    table = arrow.table({"image": images, "label": arrow.array(LABELS) if label is None else label})
    about = {"info": {"features": {"image": {"_type": "Image"}, "label": {"_type": "ClassLabel", **features}}}}
    parquet.write_table(table.replace_schema_metadata({"huggingface": json.dumps(about)}), folder / "data.parquet")
    return folder / "data.parquet"


def write_hdf5(folder: Path, **arrays: Any) -> Path:
    with h5py.File(folder / "data.h5", "w") as file:
        for name, values in ({"images": PICTURES.transpose(0, 3, 1, 2), "labels": LABELS} | arrays).items():
            if values is not None:
                file[name] = values
    return folder / "data.h5"


def write_npz(folder: Path) -> Path:
    np.savez_compressed(folder / "data.npz", x=PICTURES, y=LABELS[:, None])
    return folder / "data.npz"


def write_npy(folder: Path) -> Path:
    (folder / "arrays").mkdir()
    np.save(folder / "arrays" / "image.npy", PICTURES)
    np.save(folder / "arrays" / "label.npy", LABELS)
    return folder / "arrays"


@pytest.mark.parametrize("write", [write_parquet, write_hdf5, write_npz, write_npy])
def test_pictures_of_tables_and_arrays_are_those_that_serving_makes_of_files(tmp_path: Path, write: Write) -> None:
    data = write(tmp_path)
    done = preprocess(data, tmp_path / "out", image_normalize="none")
    assert (done.figures["train_samples"], done.figures["test_samples"]) == (6, 2)
    made = find_picture_preprocessing(tmp_path / "out" / "dataset")
    assert made is not None
    assert made.classes == classes_of_pictures(data) == ("0", "1")
    kept = np.concatenate([np.load(tmp_path / f"out/dataset/{split}/image.npy") for split in ("train", "test")])
    labels = np.concatenate([np.load(tmp_path / f"out/dataset/{split}/label.npy") for split in ("train", "test")])
    served = {made.array_of(png(one)).tobytes(): label for one, label in zip(PICTURES, LABELS, strict=True)}
    assert {one.tobytes(): label for one, label in zip(kept, labels, strict=True)} == served


def test_a_table_of_hugging_face_names_its_classes_and_texts_name_themselves(tmp_path: Path) -> None:
    assert classes_of_pictures(write_parquet(tmp_path, names=["cat", "dog"])) == ("cat", "dog")
    words = arrow.array(["ant" if label else "bee" for label in LABELS])
    data = write_parquet(tmp_path, label=words)
    preprocess(data, tmp_path / "out")
    manifest = json.loads((tmp_path / "out" / "dataset" / MANIFEST).read_text())
    assert manifest["classes"] == ["ant", "bee"]


@pytest.mark.parametrize(
    ("write", "changed", "words"),
    [
        (
            lambda f: write_parquet(f, image=arrow.array([png(PICTURES[0])] * 7 + [b"no"])),
            {},
            r"row 7: not readable as",
        ),
        (lambda f: write_parquet(f, image=arrow.array([{"bytes": None, "path": "/etc/x"}] * 8)), {}, "row 0: no bytes"),
        (lambda f: write_parquet(f, image=arrow.array(range(8))), {}, "its type is int64; expected bytes of PNG"),
        (lambda f: write_parquet(f, label=arrow.array([0] * 7 + [None])), {}, "row 7: the label is 'None'; expected a"),
        (lambda f: write_parquet(f, label=arrow.array([0] * 7 + [-1])), {}, "row 7: the label is '-1'"),
        (
            lambda f: write_parquet(f, names=["cat"]),
            {},
            r"a label is 1; expected 0 to 0, the classes that the file "
            r"names",
        ),
        (write_parquet, {"num_classes": 5}, None),
        (lambda f: write_parquet(f, names=["a", "b"]), {"num_classes": 5}, "has 2 classes .a, b., but the model has 5"),
        (lambda f: write_hdf5(f, images=np.zeros((8, 8, 8, 3), np.float32)), {}, "its type is float32; expected uint8"),
        (lambda f: write_hdf5(f, images=np.zeros((8, 3, 8, 3), np.uint8)), {}, r"the shape \[8, 3, 8, 3\]; expected"),
        (lambda f: write_hdf5(f, labels=np.arange(7)), {}, "has 8 pictures and 7 labels"),
        (lambda f: write_hdf5(f, labels=None), {}, "has images; expected one of image, images"),
        (lambda f: write_hdf5(f, images=h5py.ExternalLink("/etc/other.h5", "/x")), {}, "has labels; expected one of"),
    ],
)
def test_what_cannot_be_used_is_refused_with_its_place(
    tmp_path: Path, write: Write, changed: dict[str, Any], words: str | None
) -> None:
    data = write(tmp_path)
    if words is None:  # numbers without names are classes of a larger model, too
        preprocess(data, tmp_path / "out", **changed)
        return
    with pytest.raises(InvalidArgument, match=words):
        preprocess(data, tmp_path / "out", **changed)


def test_a_damaged_file_and_a_huge_picture_are_refused(tmp_path: Path) -> None:
    data = write_npz(tmp_path)
    data.write_bytes(data.read_bytes()[:200])
    with pytest.raises(InvalidArgument, match=r"data\.npz is damaged: .*; expected an intact npz file"):
        preprocess(data, tmp_path / "out")
    with h5py.File(tmp_path / "huge.h5", "w") as file:
        file.create_dataset("image", (2, 1 << 14, 1 << 13, 3), np.uint8, chunks=True)
        file["label"] = [0, 1]
    with pytest.raises(InvalidArgument, match="8192 x 16384 pixels; expected at most 67108864"):
        preprocess(tmp_path / "huge.h5", tmp_path / "out")


def test_files_of_several_formats_are_refused(tmp_path: Path) -> None:
    write_parquet(tmp_path)
    write_hdf5(tmp_path)
    with pytest.raises(InvalidArgument, match="mixes parquet and hdf5; expected files of one format"):
        classes_of_pictures(tmp_path)


def test_an_augmentation_in_words_becomes_parameters() -> None:
    assert augmentation_parameters("flip=0.5, shift=2") == {"augment_flip": 0.5, "augment_shift": 2}
    assert augmentation_parameters("") == {}
    for words in ("flip", "blur=1", "flip=nan", "flip=x"):
        with pytest.raises(InvalidArgument, match=f"augmentation '{words}'; expected NAME=NUMBER with one of rotation"):
            augmentation_parameters(words)


AUGMENTED = {
    "augment_rotation": 20.0, "augment_crop": 0.3, "augment_shift": 1, "augment_flip": 0.5, "augment_colour": 0.2
}  # fmt: skip


def batches(folder: Path, start: int = 0, epoch: int = 0) -> list[Any]:
    manifest = json.loads((folder / "dataset" / MANIFEST).read_text())
    return [image for image, _ in ArrayDataset(folder / "dataset", manifest).batches(2, 5, epoch, start)]


def test_training_pictures_change_by_torchvisions_transforms_and_a_resumed_training_sees_the_same(
    tmp_path: Path,
) -> None:
    v2 = transforms_or_skip()
    data = write_npy(tmp_path)
    plain, changed = tmp_path / "plain", tmp_path / "changed"
    preprocess(data, plain)
    preprocess(data, changed, **AUGMENTED)
    listed = json.loads((changed / "dataset" / MANIFEST).read_text())["augmentation"]
    assert [step["transform"] for step in listed] == [
        "RandomRotation", "RandomResizedCrop", "RandomCrop", "RandomHorizontalFlip", "ColorJitter"
    ]  # fmt: skip
    first = batches(changed)
    assert all(np.array_equal(a, b) for a, b in zip(batches(changed, 1), first[1:], strict=True)), "resumed at step 1"
    assert not any(np.array_equal(a, b) for a, b in zip(first, batches(plain), strict=True))
    assert not np.array_equal(first[0], batches(changed, epoch=1)[0])
    for name in ("train", "test"):
        stored, same = (np.load(folder / "dataset" / name / "image.npy") for folder in (plain, changed))
        assert np.array_equal(stored, same), "stored pictures and held-out ones stay"
    digests = [
        ArrayDataset(f / "dataset", json.loads((f / "dataset" / MANIFEST).read_text())).digest for f in (plain, changed)
    ]
    assert digests[0] != digests[1]

    preprocess(data, tmp_path / "flipped", augment_flip=1.0)
    for found, before in zip(batches(tmp_path / "flipped"), batches(plain), strict=True):
        wanted = v2.functional.horizontal_flip(torch.from_numpy(before)).numpy()
        np.testing.assert_allclose(found, wanted, atol=1e-6)


def test_an_augmentation_that_cannot_be_applied_is_refused(tmp_path: Path) -> None:
    data = write_npy(tmp_path)
    preprocess(data, tmp_path / "out")
    path = tmp_path / "out" / "dataset" / MANIFEST
    manifest = json.loads(path.read_text())
    for step in ({"transform": "Lambda", "value": 1}, {"transform": "RandomCrop", "value": 1e9}, "RandomCrop"):
        with pytest.raises(InvalidArgument, match=r"augmentation is unknown: .*; expected some of RandomRotation"):
            ArrayDataset(path.parent, {**manifest, "augmentation": [step]})
    np.save(data / "image.npy", np.zeros((8, 3, 8, 8), np.float32))
    with pytest.raises(InvalidArgument, match="augment_flip change pictures, but the data are numbers of unknown"):
        preprocess(data, tmp_path / "floats", augment_flip=0.5)
