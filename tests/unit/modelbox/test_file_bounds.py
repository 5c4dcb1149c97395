"""Files that are short and stand for much, or for other files: refused by their headers, before a value is decoded."""

import io
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as arrow
import pyarrow.parquet as parquet
import pytest

from rdukit.errors import InvalidArgument
from rdukit_modelbox.contract.box import find_box_file, load_box
from rdukit_modelbox.contract.check_parameters import check_parameters
from rdukit_modelbox.contract.parts import Verb
from rdukit_modelbox.preprocessing.arrays import preprocess_arrays
from rdukit_modelbox.preprocessing.picture_rows import find_picture_rows
from rdukit_modelbox.preprocessing.table_rows import flat_rows
from rdukit_modelbox.verbs import load_verb
from support import shows
from support.boxes import RecordingContext

pytestmark = shows("image-folders", "preprocess")

SIZES = {"image_size": 8, "patch_size": 4, "channels": 3, "num_classes": 2}
PICTURES = np.zeros((4, 8, 8, 3), np.uint8)


def preprocess_pictures(data: Path, output: Path) -> None:
    box = load_box(find_box_file("vit"))
    output.mkdir(exist_ok=True)
    preprocess_arrays(
        RecordingContext(box), check_parameters(box, Verb.PREPROCESS, {**SIZES}), {"data": data}, output
    )  # fmt: skip


def preprocess_rows(data: Path, output: Path) -> None:
    box = load_box(find_box_file("logreg"))
    output.mkdir(exist_ok=True)
    load_verb(Verb.PREPROCESS)(
        RecordingContext(box), check_parameters(box, Verb.PREPROCESS, {}), {"data": data}, output
    )  # fmt: skip


def write_hdf5(folder: Path, features: str, make: Any) -> Path:
    """Write four rows; ``make`` replaces one of the data sets."""
    secret = folder / "secret"
    secret.write_bytes(bytes(range(250)) * 10)
    with h5py.File(folder / "data.h5", "w") as file:
        file[features], file["label"] = PICTURES, [0, 1, 0, 1]
        make(file, features, str(secret))
    return folder / "data.h5"


def outside_labels(file: Any, _: str, secret: str) -> None:
    del file["label"]
    file.create_dataset("label", (4,), np.uint8, external=[(secret, 0, 4)])


def outside_features(file: Any, name: str, secret: str) -> None:
    del file[name]
    file.create_dataset(name, PICTURES.shape, np.uint8, external=[(secret, 0, 768)])


def virtual_features(file: Any, name: str, secret: str) -> None:
    del file[name]
    layout = h5py.VirtualLayout(PICTURES.shape, np.uint8)
    layout[:] = h5py.VirtualSource(secret, "x", PICTURES.shape)
    file.create_virtual_dataset(name, layout)


def many_rows(file: Any, name: str, _: str) -> None:
    del file[name], file["label"]
    file.create_dataset(name, (1 << 40, 8, 8, 3), np.uint8, chunks=(1, 8, 8, 3))
    file.create_dataset("label", (1 << 40,), np.uint8, chunks=(1024,))


def large_chunks(file: Any, name: str, _: str) -> None:
    del file[name]
    file.create_dataset(name, (4, 8, 8, 3), np.uint8, chunks=(1 << 21, 8, 8, 3), maxshape=(None, 8, 8, 3))


@pytest.mark.parametrize("preprocess", [preprocess_pictures, preprocess_rows])
@pytest.mark.parametrize(
    ("make", "words"),
    [
        (outside_labels, "'label': its values are in other files; expected a self-contained file"),
        (outside_features, "'image': its values are in other files; expected a self-contained file"),
        (virtual_features, "'image': its values are in other files; expected a self-contained file"),
        (many_rows, "1099511627776 labels take 64 TiB in memory; expected at most"),
        (large_chunks, r"its chunks \[2097152, 8, 8, 3\] are of 2097152 rows, 384 MiB; expected chunks of rows of at"),
    ],
)
def test_an_hdf5_file_of_other_files_or_of_endless_rows_is_refused(
    tmp_path: Path, preprocess: Any, make: Any, words: str
) -> None:
    with pytest.raises(InvalidArgument, match=words):
        preprocess(write_hdf5(tmp_path, "image", make), tmp_path / "out")


def write_npz(path: Path, **shapes: tuple[tuple[int, ...], str]) -> Path:
    """Write arrays whose headers say ``shapes``, without values."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, (shape, dtype) in shapes.items():
            head = io.BytesIO()
            np.lib.format.write_array_header_1_0(head, {"descr": dtype, "fortran_order": False, "shape": shape})
            archive.writestr(f"{name}.npy", head.getvalue())
    return path


def test_arrays_whose_headers_say_more_than_fits_are_refused(tmp_path: Path) -> None:
    floats = write_npz(tmp_path / "f.npz", image=((1 << 40, 3, 8, 8), "<f4"), label=((1 << 40,), "<i8"))
    with pytest.raises(InvalidArgument, match=r"f\.npz, image, label: .* bytes take .* in memory; expected at most"):
        preprocess_pictures(floats, tmp_path / "out")
    bytes_ = write_npz(tmp_path / "u.npz", image=((1 << 40, 8, 8, 3), "|u1"), label=((1 << 40,), "<i8"))
    with pytest.raises(InvalidArgument, match="1099511627776 labels take 64 TiB in memory"):
        preprocess_pictures(bytes_, tmp_path / "out")
    few = write_npz(tmp_path / "few.npz", image=((4, 8, 8, 3), "|u1"), label=((1 << 40,), "<i8"))
    with pytest.raises(InvalidArgument, match="has 4 pictures and 1099511627776 labels"):
        find_picture_rows(few)
    rows = write_npz(tmp_path / "r.npz", x=((1 << 40, 4), "<f4"), label=((1 << 40,), "<i8"))
    with pytest.raises(InvalidArgument, match="1099511627776 labels take 64 TiB in memory"):
        preprocess_rows(rows, tmp_path / "out")


def test_a_long_text_that_repeats_is_in_memory_some_times_only(tmp_path: Path) -> None:
    """All 2,000 at once would take 500 MB."""
    words = arrow.array(["x" * (1 << 18)] * 2000)
    parquet.write_table(arrow.table({"text": words, "label": [0] * 2000}), tmp_path / "t.parquet")
    assert (tmp_path / "t.parquet").stat().st_size < 1 << 20
    tracemalloc.start()
    try:
        count = sum(len(str(text)) == 1 << 18 for text, _ in flat_rows(tmp_path / "t.parquet", ["text", "label"]))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (count, peak < 200 << 20) == (2000, True)


def test_a_picture_of_another_program_is_not_opened_by_its_ending(tmp_path: Path) -> None:
    """A box of rows opens its pictures as PNG, JPEG and the like alone: PostScript would start an interpreter."""
    (tmp_path / "data/a").mkdir(parents=True)
    (tmp_path / "data/a/one.png").write_text("%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 99999 99999\n%%EOF\n")
    with pytest.raises(InvalidArgument, match="not readable as an image; expected PNG, JPEG, BMP, GIF, WebP or TIFF"):
        preprocess_rows(tmp_path / "data", tmp_path / "out")
