"""The digits that the zoo carries, and folders of idx files."""

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest

from rdukit.errors import InvalidArgument, NotFound
from rdukit_zoo.datasets.digits import load_bundled, load_folder, parse_idx
from support import shows

pytestmark = shows("zoo")


def idx(array: np.ndarray) -> bytes:
    return (
        bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.astype(np.uint8).tobytes()
    )


def write_folder(folder: Path, labels: list[int]) -> Path:
    raw = folder / "MNIST" / "raw"
    raw.mkdir(parents=True)
    images = np.arange(len(labels) * 784).reshape(-1, 28, 28) % 256
    for part in ("train", "t10k"):
        (raw / f"{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(images)))
        (raw / f"{part}-labels-idx1-ubyte").write_bytes(idx(np.array(labels)))
    return raw


def test_the_bundled_digits_are_ten_thousand_real_ones() -> None:
    digits = load_bundled()
    assert digits.train_images.shape == (8000, 28, 28)
    assert digits.test_images.shape == (2000, 28, 28)
    assert (digits.train_labels.shape, digits.test_labels.shape) == ((8000,), (2000,))
    assert digits.train_labels[:5].tolist() == [7, 2, 1, 0, 4]
    counts = np.bincount(np.concatenate([digits.train_labels, digits.test_labels]))
    assert counts.tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]


def test_a_folder_in_the_usual_layout_is_read(tmp_path: Path) -> None:
    write_folder(tmp_path, [3, 1, 4])
    digits = load_folder(tmp_path)
    assert digits.train_labels.tolist() == digits.test_labels.tolist() == [3, 1, 4]


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    raw = write_folder(tmp_path, [1])
    (raw / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(NotFound, match="t10k-labels-idx1-ubyte"):
        load_folder(tmp_path)


def test_wrong_labels_and_numbers_are_refused(tmp_path: Path) -> None:
    raw = write_folder(tmp_path, [1, 2])
    (raw / "train-labels-idx1-ubyte").write_bytes(idx(np.array([1])))
    with pytest.raises(InvalidArgument, match="2 images but labels"):
        load_folder(tmp_path)
    (raw / "train-labels-idx1-ubyte").write_bytes(idx(np.array([1, 12])))
    with pytest.raises(InvalidArgument, match="label 12; expected 0 to 9"):
        load_folder(tmp_path)
    (raw / "train-images-idx3-ubyte.gz").write_bytes(b"\x1f\x8bnot gzip")
    with pytest.raises(InvalidArgument, match="damaged gzip"):
        load_folder(tmp_path)


@pytest.mark.parametrize("data", [b"", b"\0\0\x08", b"\0\0\x0d\x01aaaa", b"\0\0\x08\x03\0\0", b"\x01\0\x08\x01"])
def test_what_is_no_idx_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidArgument):
        parse_idx(data)


def test_an_idx_file_that_is_cut_off_or_too_long_is_refused() -> None:
    whole = idx(np.zeros((2, 3)))
    assert parse_idx(whole).shape == (2, 3)
    for data in (whole[:-1], whole + b"x"):
        with pytest.raises(InvalidArgument, match="its header"):
            parse_idx(data)
