"""Handwritten digits as arrays: the 10,000 that the zoo carries, or a folder of idx files in MNIST's names.

Axes: N images, H = 28 rows, W = 28 columns.
"""

import gzip
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rdukit.errors import InvalidArgument, NotFound

FOLDER: Final = Path(__file__).with_name("mnist10k")
IMAGES: Final = 10_000
TRAIN_IMAGES: Final = 8_000
SIDE: Final = 28
CLASSES: Final = 10
ATTRIBUTION: Final = "MNIST test set, LeCun, Cortes, Burges; CC BY-SA 3.0"

Bytes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Digits:
    """Images [N, 28, 28] uint8 (0 background, 255 ink) and labels [N] int64 (0 to 9), in two parts."""

    train_images: Bytes
    train_labels: NDArray[np.int64]
    test_images: Bytes
    test_labels: NDArray[np.int64]
    source: str


def load_bundled() -> Digits:
    """Load the digits in the package: 8,000 to train, 2,000 to test, in the files' order.

    Raises:
        InvalidArgument: a file of the installation is damaged.
    Source: ours; the split of MNIST's test set keeps the files' order.
    """
    images = read_idx(FOLDER / "t10k-images-idx3-ubyte.gz")
    labels = read_idx(FOLDER / "t10k-labels-idx1-ubyte.gz")
    if len(images) != IMAGES:
        raise InvalidArgument(f"{FOLDER} has {len(images)} images, not {IMAGES}; the installation is damaged")
    _check_pair(FOLDER, "bundled", images, labels)
    cut = TRAIN_IMAGES
    wide = labels.astype(np.int64)
    return Digits(images[:cut], wide[:cut], images[cut:], wide[cut:], f"mnist10k ({ATTRIBUTION})")


def load_folder(folder: Path) -> Digits:
    """Load digits from idx files named as MNIST names them, in ``folder`` or its ``MNIST/raw``.

    Raises:
        NotFound: one of the four files is missing; the message names it.
        InvalidArgument: images and labels differ in number, are not 28 x 28, or a label is not 0 to 9.
    """
    parts: list[tuple[Bytes, NDArray[np.int64]]] = []
    for part in ("train", "t10k"):
        images = read_idx(_required(folder, f"{part}-images-idx3-ubyte"))
        labels = read_idx(_required(folder, f"{part}-labels-idx1-ubyte"))
        _check_pair(folder, part, images, labels)
        parts.append((images, labels.astype(np.int64)))
    (train_images, train_labels), (test_images, test_labels) = parts
    return Digits(train_images, train_labels, test_images, test_labels, f"folder {folder.name}")


def _required(folder: Path, stem: str) -> Path:
    path = find_idx(folder, stem)
    if path is None:
        raise NotFound(f"{folder} has no {stem} (nor {stem}.gz), neither directly nor in MNIST/raw below it")
    return path


def _check_pair(folder: Path, part: str, images: Bytes, labels: Bytes) -> None:
    if images.ndim != 3 or images.shape[1:] != (SIDE, SIDE):
        raise InvalidArgument(f"{folder}: {part} images have shape {images.shape}; expected [N, {SIDE}, {SIDE}]")
    if labels.shape != (len(images),):
        raise InvalidArgument(f"{folder}: {part} has {len(images)} images but labels of shape {labels.shape}")
    if len(labels) and int(labels.max()) >= CLASSES:
        raise InvalidArgument(f"{folder}: {part} has label {int(labels.max())}; expected 0 to {CLASSES - 1}")


#: Third byte of an idx file: the item type. Only unsigned bytes occur in image sets.
_UNSIGNED_BYTE: Final = 8
_GZIP_MAGIC: Final = b"\x1f\x8b"


def read_idx(path: Path) -> Bytes:
    """Read the array in the idx file at ``path``, uint8, in the file's own shape.

    Raises:
        NotFound: there is no file.
        InvalidArgument: not an idx file of unsigned bytes, or its length differs from what its header says.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError as cause:
        raise NotFound(f"no idx file at {path}") from cause
    if data.startswith(_GZIP_MAGIC):
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError, zlib.error) as cause:
            raise InvalidArgument(f"{path} is a damaged gzip file: {cause}") from cause
    return parse_idx(data, str(path))


def parse_idx(data: bytes, name: str = "idx data") -> Bytes:
    """Parse the array in ``data``, an idx file's content; ``name`` is for messages.

    Raises:
        InvalidArgument: as ``read_idx``.
    """
    if len(data) < 4 or data[:2] != b"\0\0" or data[2] != _UNSIGNED_BYTE or not 1 <= data[3] <= 4:
        raise InvalidArgument(f"{name} is not an idx file of unsigned bytes: it starts with {data[:4]!r}")
    axes = data[3]
    header = 4 + 4 * axes
    if len(data) < header:
        raise InvalidArgument(f"{name} ends inside its header")
    shape = tuple(int.from_bytes(data[4 + 4 * i : 8 + 4 * i], "big") for i in range(axes))
    expected = header + int(np.prod(shape, dtype=np.int64))
    if len(data) != expected:
        raise InvalidArgument(f"{name} has {len(data)} bytes; its header, shape {shape}, says {expected}")
    return np.frombuffer(data, dtype=np.uint8, offset=header).reshape(shape)


def find_idx(folder: Path, stem: str) -> Path | None:
    """Find the idx file ``stem`` in ``folder`` or its ``MNIST/raw`` below, gzipped or not; torchvision's layout."""
    for place in (folder, folder / "MNIST" / "raw", folder / "raw"):
        for name in (stem, f"{stem}.gz"):
            if (place / name).is_file():
                return place / name
    return None


def digit_images(count: int, seed: int, image_size: int = SIDE, channels: int = 1) -> dict[str, NDArray[Any]]:
    """Return ``count`` of the bundled digits, in an order that the seed gives; repeated beyond 10,000.

    Returns:
        ``image`` [N, channels, image_size, image_size] float32 on 0..1, cut or padded around the middle, and ``label``
        [N] int64.
    """
    digits = load_bundled()
    images = np.concatenate([digits.train_images, digits.test_images])
    labels = np.concatenate([digits.train_labels, digits.test_labels])
    order = np.random.default_rng([seed, 16]).permutation(IMAGES)[np.arange(count) % IMAGES]
    images_NHW = images[order].astype(np.float32) / np.float32(255)
    margin = max(0, image_size - SIDE)
    before = margin // 2
    images_NHW = np.pad(images_NHW, ((0, 0), (before, margin - before), (before, margin - before)))
    cut = (images_NHW.shape[1] - image_size) // 2
    images_NHW = images_NHW[:, cut : cut + image_size, cut : cut + image_size]
    return {"image": np.repeat(images_NHW[:, None], channels, 1), "label": labels[order]}
