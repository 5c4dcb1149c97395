"""Arrays (NPZ, HDF5) and folders of images as blocks of rows, read piece by piece.

Axes: N rows of a block, F features.
"""

import zipfile
import zlib
from collections.abc import Iterator
from math import prod
from pathlib import PurePosixPath
from typing import IO, Any, Final

import h5py  # type: ignore[import-untyped]
import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from rdukit.errors import InvalidArgument
from rdukit_modelbox.preprocessing.columns import RowBlock, RowPreprocessRequest
from rdukit_modelbox.preprocessing.file_bounds import (
    CACHE_BYTES,
    LABEL_BYTES,
    MAX_ROW_VALUES,
    dataset_inside,
    labels_inside,
    require_memory,
)
from rdukit_modelbox.preprocessing.sources import RowErrors, SourceFile
from rdukit_serving.raw_inputs.legal_values import LEGAL_RANGE, NotLegal, as_float32, name_of
from rdukit_serving.raw_inputs.pictures import FORMATS

#: About the bytes of a block of features.
BLOCK_BYTES: Final = 4 << 20
LABEL_NAMES: Final = ("label", "labels", "y", "targets")


def read_npz(source: SourceFile, request: RowPreprocessRequest, bad: RowErrors) -> Iterator[RowBlock]:
    """Rows of an .npz file: one array of features [N, …] and one of labels [N], read without pickles.

    Raises:
        InvalidArgument: no such arrays, or the file is damaged.
    """
    try:
        with zipfile.ZipFile(source.path) as file:
            names = [name.removesuffix(".npy") for name in file.namelist()]
            features, labels = _choose(source, names, request)
            with file.open(f"{labels}.npy") as stream:
                known = NpyStream(source, labels, stream)
                require_memory(source.name, prod(known.shape), max(known.dtype.itemsize, LABEL_BYTES), "labels")
                labels_N = _labels(source, labels, known.read_all(), bad)
            with file.open(f"{features}.npy") as stream:
                array = NpyStream(source, features, stream)
                yield from _blocks(source, features, array.shape, array.take, labels_N, request, bad)
    except (zipfile.BadZipFile, zlib.error, OSError, ValueError, EOFError) as cause:
        raise InvalidArgument(
            f"{source.name} is not readable as NPZ; expected a file that numpy.savez wrote from arrays of numbers"
        ) from cause


def read_hdf5(source: SourceFile, request: RowPreprocessRequest, bad: RowErrors) -> Iterator[RowBlock]:
    """Rows of an HDF5 file: one data set of features [N, …] and one of labels [N], at its top.

    Raises:
        InvalidArgument: no such data sets, or the file is damaged.
    """
    try:
        with h5py.File(source.path, "r", rdcc_nbytes=CACHE_BYTES) as file:
            # No link to another file is followed.
            inside = [name for name in file if isinstance(file.get(name, getlink=True), h5py.HardLink)]
            names = [name for name in inside if isinstance(file[name], h5py.Dataset)]
            features, labels = _choose(source, names, request)
            data, at = dataset_inside(source.name, file, features), 0
            rows = data.shape[0] if data.shape else 0
            labels_N = _labels(source, labels, labels_inside(source.name, file, labels, rows, "rows"), bad)

            def take(count: int) -> NDArray[Any]:
                nonlocal at
                at += count
                rows: NDArray[Any] = data[at - count : at]
                return rows

            if data.dtype.kind not in "iufb":
                raise InvalidArgument(f"{source.name}, {features!r}: its type is {data.dtype}; expected numbers")
            yield from _blocks(source, features, data.shape, take, labels_N, request, bad)
    except (OSError, KeyError) as cause:
        raise InvalidArgument(
            f"{source.name} is not readable as HDF5; expected an intact file with one top-level data set of features "
            "and one of labels"
        ) from cause


class NpyStream:
    """An .npy array read front to back."""

    def __init__(self, source: SourceFile, name: str, stream: IO[bytes]) -> None:
        version = npy.read_magic(stream)
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        self.shape, is_fortran, self.dtype = read(stream)
        if is_fortran and len(self.shape) > 1:
            raise InvalidArgument(f"{source.name}, {name!r}: rows are stored column by column; expected C order")
        if self.dtype.kind not in "iufbUS":
            raise InvalidArgument(f"{source.name}, {name!r}: its type is {self.dtype}; expected numbers or texts")
        self._stream = stream

    def take(self, count: int) -> NDArray[Any]:
        """Return the next ``count`` rows."""
        shape = (count, *self.shape[1:])
        wanted = int(np.prod(shape)) * self.dtype.itemsize
        data = self._stream.read(wanted)
        if len(data) != wanted:
            raise EOFError("the array ends early")
        return np.frombuffer(data, self.dtype).reshape(shape)

    def read_all(self) -> NDArray[Any]:
        """Read all rows."""
        return self.take(self.shape[0] if self.shape else 0)


def _choose(source: SourceFile, names: list[str], request: RowPreprocessRequest) -> tuple[str, str]:
    """Names of the arrays of features and of labels."""
    labels = next((name for name in (request.label_column, *LABEL_NAMES) if name in names), None)
    others = [name for name in names if name != labels]
    features = next((name for name in request.columns if name in names), None) if request.columns else None
    if features is None and not request.columns and len(others) == 1:
        features = others[0]
    if labels is None or features is None:
        raise InvalidArgument(
            f"{source.name} has the arrays {', '.join(names) or 'none'}; expected labels under "
            f"{request.label_column!r} (label_column) and one array of features (name it under columns if there are "
            "several)",
            file=source.name, arrays=names,
        )  # fmt: skip
    return features, labels


def _labels(source: SourceFile, column: str, values: NDArray[Any], bad: RowErrors) -> list[str | None]:
    """Return the name of each row's label; ``None`` for rows in ``bad``."""
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim != 1 or values.dtype.kind not in "iufbUSO":
        raise InvalidArgument(
            f"{source.name}, {column!r}: {values.dtype} {list(values.shape)}; expected one label per row"
        )
    found: list[str | None] = []
    # Narrow floats are converted through their shortest text: 0.1 as float32 becomes 0.1.
    known = [float(str(value)) for value in values] if values.dtype.kind == "f" else values.tolist()
    for row, value in enumerate(known, 1):
        try:
            name = name_of(value)
        except NotLegal as fault:
            bad.add(source.name, row, fault.reason, fault.legal, column)
            name = None
        else:
            if name is None:
                bad.add(source.name, row, "no label", "a class", column)
        found.append(name)
    return found


def _blocks(
    source: SourceFile,
    name: str,
    shape: tuple[int, ...],
    take: Any,
    labels: list[str | None],
    request: RowPreprocessRequest,
    bad: RowErrors,
) -> Iterator[RowBlock]:
    if len(shape) < 2 or shape[0] != len(labels):
        raise InvalidArgument(
            f"{source.name}, {name!r}: shape {list(shape)}; expected [{len(labels)}, …], one row per label"
        )
    width = prod(shape[1:])
    if not 0 < width <= MAX_ROW_VALUES:
        raise InvalidArgument(f"{source.name}, {name!r}: a row has {width} values; expected 1 to {MAX_ROW_VALUES}")
    step = max(1, BLOCK_BYTES // (4 * width))
    for start in range(0, len(labels), step):
        stop = min(start + step, len(labels))
        rows = as_float32(take(stop - start).reshape(stop - start, width))
        has_label_N = np.array([label is not None for label in labels[start:stop]], np.bool_)
        chosen = _usable(source, name, rows, has_label_N, start, request, bad)
        kept = [label or "" for label, good in zip(labels[start:stop], chosen.tolist(), strict=True) if good]
        yield RowBlock(rows[chosen], (), kept, source.bytes * stop // len(labels))


def _usable(
    source: SourceFile,
    name: str,
    rows: NDArray[np.float32],
    has_label_N: NDArray[np.bool_],
    start: int,
    request: RowPreprocessRequest,
    bad: RowErrors,
) -> NDArray[np.bool_]:
    is_bad_N: NDArray[np.bool_] = np.asarray(np.isinf(rows).any(axis=1)) & has_label_N
    is_missing_N: NDArray[np.bool_] = np.asarray(np.isnan(rows).any(axis=1)) & has_label_N & ~is_bad_N
    for index in np.flatnonzero(is_bad_N).tolist():
        bad.add(source.name, start + index + 1, "a value is infinite or exceeds float32", LEGAL_RANGE, name)
    if request.missing in {"zero", "mean"}:
        return has_label_N & ~is_bad_N
    for index in np.flatnonzero(is_missing_N).tolist():
        if request.missing == "drop":
            bad.dropped += 1
        else:
            bad.add(source.name, start + index + 1, "a value is NaN", "numbers, or missing=drop, zero or mean", name)
    return has_label_N & ~(is_bad_N | is_missing_N)


IMAGES_A_BLOCK: Final = 256
MAX_PIXELS: Final = 1 << 26


def read_images(sources: list[SourceFile], request: RowPreprocessRequest, bad: RowErrors) -> Iterator[RowBlock]:
    """Rows of image files whose folder is their class: grey or colour values 0..255, row by row.

    Raises:
        InvalidArgument: an image that cannot be used and ``bad`` refuses.
    """
    consumed = width = 0
    rows: list[NDArray[np.float32]] = []
    labels: list[str] = []
    for source in sources:
        consumed += source.bytes
        folder = PurePosixPath(source.name).parent.name
        if not folder:
            bad.add(source.name, None, "the image is not in a class folder", "<class>/<image>")
            continue
        try:
            image = _read_image(source, request)
        except _BadImage as fault:
            bad.add(source.name, None, fault.reason, fault.legal)
            continue
        pixels = np.asarray(image, np.float32).reshape(-1)
        width = width or len(pixels)
        if len(pixels) != width:
            bad.add(source.name, None, f"{image.width} x {image.height} pixels, unlike other images", "one size")
            continue
        rows.append(pixels)
        labels.append(folder)
        if len(rows) == IMAGES_A_BLOCK:
            yield RowBlock(np.stack(rows), (), labels, consumed)
            rows, labels = [], []
    if rows:
        yield RowBlock(np.stack(rows), (), labels, consumed)


class _BadImage(Exception):
    def __init__(self, reason: str, legal: str) -> None:
        self.reason, self.legal = reason, legal


def _read_image(source: SourceFile, request: RowPreprocessRequest) -> Image.Image:
    """Return the image as grey or colour, in the requested size."""
    try:
        with Image.open(source.path, formats=FORMATS) as image:
            if image.width * image.height > MAX_PIXELS:
                raise _BadImage(f"{image.width} x {image.height} pixels", f"at most {MAX_PIXELS} pixels")
            plain = image.convert("L" if request.image_mode == "grey" else "RGB")
        size = (request.image_size, request.image_size) if request.image_size else plain.size
        return plain if plain.size == size else plain.resize(size, Image.Resampling.BILINEAR)
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError, Image.DecompressionBombError) as cause:
        raise _BadImage("not readable as an image", "PNG, JPEG, BMP, GIF, WebP or TIFF") from cause
