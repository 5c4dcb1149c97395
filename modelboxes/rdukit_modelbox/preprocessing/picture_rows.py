"""Pictures in tables and arrays: Parquet as Hugging Face datasets write it, and uint8 in HDF5, ``.npz`` and ``.npy``.

Pictures are decoded one at a time; each has at most ``MAX_PIXELS``. Nothing pickled is read.
Axes: N pictures, C channels, Y, X pixels.
"""

import json
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from typing import IO, Any, Final

import h5py  # type: ignore[import-untyped]
import numpy as np
import pyarrow as arrow  # type: ignore[import-untyped]
import pyarrow.parquet as parquet  # type: ignore[import-untyped]
from numpy.typing import NDArray
from PIL import Image

from rdukit.errors import InvalidArgument, NotFound
from rdukit_modelbox.contract.allowed_values import ParameterValue
from rdukit_modelbox.preprocessing.array_rows import NpyStream
from rdukit_modelbox.preprocessing.file_bounds import (
    CACHE_BYTES,
    LABEL_BYTES,
    check_labels,
    check_parquet,
    dataset_inside,
    labels_inside,
    require_memory,
)
from rdukit_modelbox.preprocessing.picture_folders import (
    PictureFolder,
    is_picture_folder,
    picture_classes,
    preprocessing_of,
    read_picture_folder,
)
from rdukit_modelbox.preprocessing.row_run import picture_splits
from rdukit_modelbox.preprocessing.sources import Format, SourceFile, find_sources
from rdukit_modelbox.preprocessing.table_rows import flat_rows
from rdukit_modelbox.verbs.context import Progress, VerbContext
from rdukit_serving.raw_inputs.pictures import MAX_PIXELS, BadPicture

#: Names of the column or array with the pictures, and of that with their classes.
IMAGE_NAMES: Final = ("image", "images", "img", "picture", "x", "data")
LABEL_NAMES: Final = ("label", "labels", "class", "target", "y")
#: Pictures between two looks for a cancellation.
_STEP: Final = 64
_CHANNELS: Final = (1, 3, 4)
_EXPECTED: Final = f"one of {', '.join(IMAGE_NAMES)} for pictures, and one of {', '.join(LABEL_NAMES)} for labels"
_DAMAGED: Final = (zipfile.BadZipFile, zlib.error, OSError, ValueError, EOFError, KeyError, arrow.ArrowException)


@dataclass(frozen=True, slots=True)
class PictureRows:
    """Pictures of one file: the label of each, the names of the classes if it says them, and the pictures in order."""

    source: SourceFile
    labels: Sequence[int | str]
    names: tuple[str, ...]
    #: Bytes of an encoded picture, or uint8 [Y, X] or [Y, X, C].
    pictures: Callable[[], Iterator[bytes | NDArray[np.uint8]]]


def read_pictures_of(
    context: VerbContext, data: Path, shape: Sequence[int], num_classes: int, parameters: Mapping[str, ParameterValue]
) -> PictureFolder | None:
    """Read pictures from a folder with a folder for each class, a table or arrays of uint8; None: it has other arrays.

    Raises:
        InvalidArgument: a picture or label cannot be used, or the classes are not the model's; names file and row.
        Cancelled: between two pictures.
    """
    if is_picture_folder(data):
        return read_picture_folder(context, data, shape, num_classes, parameters)
    files = find_picture_rows(data)
    if files is None:
        return None
    classes = _classes(files, num_classes)
    if len(classes) != num_classes:
        some = f"{', '.join(classes[:5])}{', …' if len(classes) > 5 else ''}"
        raise InvalidArgument(
            f"{data.name} has {len(classes)} classes ({some}), but the model has {num_classes}; expected equal "
            f"numbers: preprocess and compile with num_classes={len(classes)}"
        )
    made = preprocessing_of(shape, classes, parameters)
    count, number = sum(len(file.labels) for file in files), {name: index for index, name in enumerate(classes)}
    require_memory(data.name, count, 4 * prod(shape), "pictures")
    pictures_NCYX, labels = np.empty((count, *shape), np.float32), []
    at = 0
    for file in files:
        for row, (picture, label) in enumerate(zip(file.pictures(), file.labels, strict=True)):
            if at % _STEP == 0:
                context.check_cancelled()
                context.progress(Progress("read", at, count))
            try:
                if isinstance(picture, bytes):
                    pictures_NCYX[at] = made.array_of(picture)
                else:
                    pictures_NCYX[at] = made.array_of_image(Image.fromarray(picture))
            except BadPicture as fault:
                place = f"{file.source.name}, row {row}"
                raise InvalidArgument(f"{place}: {fault}", file=file.source.name, row=row) from None
            labels.append(label if isinstance(label, int) else number[label])
            at += 1
    splits = picture_splits([file.source for file in files])
    splits_N = np.array([splits[file.source.name] for file in files for _ in file.labels]) if splits else None
    return PictureFolder(pictures_NCYX, np.array(labels, np.int64), made, splits_N)


def classes_of_pictures(data: Path) -> tuple[str, ...]:
    """Return the names of the classes of pictures, in their order; numbers stand for themselves.

    Raises:
        NotFound, InvalidArgument: there are no pictures, or one has no class.
    """
    files = None if is_picture_folder(data) else find_picture_rows(data)
    return picture_classes(data) if files is None else _classes(files, 0)


def find_picture_rows(data: Path) -> list[PictureRows] | None:
    """Return the pictures of each file of a table or of arrays of uint8; None if there are no such files.

    Raises:
        InvalidArgument: a file is damaged, or lacks pictures or labels; the message says what is expected.
    """
    if data.is_dir() and any(data.glob("*.npy")):
        arrays = {path.stem: path for path in sorted(data.glob("*.npy"))}
        return _rows_of_arrays(_npy_source(data), arrays, lambda name: arrays[name].open("rb"))
    sources = _find_files(data)
    found: list[PictureRows] = []
    for source in sources:
        try:
            if source.format is Format.PARQUET:
                found.append(_parquet_rows(source))
            elif source.format is Format.HDF5:
                found.append(_hdf5_rows(source))
            else:
                archive = zipfile.ZipFile(source.path)
                names = {Path(name).stem: name for name in archive.namelist() if name.endswith(".npy")}
                rows = _rows_of_arrays(source, names, partial(_open_member, archive, names))
                if rows is None:
                    return None
                found += rows
        except _DAMAGED as cause:
            raise InvalidArgument(
                f"{source.name} is damaged: {cause}; expected an intact {source.format} file"
            ) from cause
    return found or None


def _find_files(data: Path) -> tuple[SourceFile, ...]:
    """Return the files of the only format in the folder; empty if there are only other files."""
    found: dict[Format, tuple[SourceFile, ...]] = {}
    for kind in (Format.PARQUET, Format.HDF5, Format.NPZ):
        with suppress(InvalidArgument, NotFound):
            found[kind] = find_sources(data, "**/*", "auto", (kind,))
    if len(found) > 1:
        raise InvalidArgument(f"{data.name} mixes {' and '.join(found)}; expected files of one format")
    return next(iter(found.values()), ())


def _open_member(archive: zipfile.ZipFile, names: Mapping[str, str], name: str) -> IO[bytes]:
    return archive.open(names[name])


def _classes(files: Sequence[PictureRows], num_classes: int) -> tuple[str, ...]:
    """Return the names of the classes: a file's own, else those that occur, or numbers up to the largest."""
    said = {file.names for file in files if file.names}
    labels = {label for file in files for label in file.labels}
    words = sorted(label for label in labels if isinstance(label, str))
    numbers = [label for label in labels if isinstance(label, int)]
    if len(said) > 1 or (words and numbers):
        names = " and ".join(file.source.name for file in files[:2])
        raise InvalidArgument(f"{names} have classes of different kinds or names; expected the same in each file")
    if words:
        return tuple(words)
    count = max(numbers, default=-1) + 1
    if said:
        (names_K,) = said
        if count > len(names_K):
            raise InvalidArgument(
                f"a label is {count - 1}; expected 0 to {len(names_K) - 1}, the classes that the file names"
            )
        return names_K
    return tuple(str(number) for number in range(max(count, num_classes)))


def _parquet_rows(source: SourceFile) -> PictureRows:
    with parquet.ParquetFile(source.path) as file:
        schema = file.schema_arrow
        check_parquet(source.name, file.metadata)
        image, label = _named(source, schema.names)
        kind = schema.field(image).type
        is_struct = arrow.types.is_struct(kind) and kind.get_field_index("bytes") >= 0
        if not is_struct and not (arrow.types.is_binary(kind) or arrow.types.is_large_binary(kind)):
            raise InvalidArgument(
                f"{source.name}, column {image!r}: its type is {kind}; expected bytes of PNG, JPEG and the like, or a "
                "struct with bytes, as Hugging Face datasets write images"
            )
        count, names = file.metadata.num_rows, _names_of_hub(schema.metadata, label)
        require_memory(source.name, count, LABEL_BYTES, "labels")
    labels = [_label(source, n, value) for n, (value,) in enumerate(flat_rows(source.path, [label]))]

    def pictures() -> Iterator[bytes]:
        with parquet.ParquetFile(source.path) as file:
            row = 0
            for batch in file.iter_batches(1, columns=[image]):  # so that one picture is in memory at a time
                for value in batch.column(0).to_pylist():
                    content = value.get("bytes") if isinstance(value, dict) else value
                    if not isinstance(content, bytes) or not content:
                        raise InvalidArgument(
                            f"{source.name}, row {row}: no bytes in {image!r}; expected the picture itself, not only "
                            "its path"
                        )
                    yield content
                    row += 1

    return PictureRows(source, labels, names, pictures)


def _names_of_hub(metadata: Mapping[bytes, bytes] | None, label: str) -> tuple[str, ...]:
    """Return the names of classes in a Hugging Face data set; empty if it has none."""
    try:
        about = json.loads((metadata or {}).get(b"huggingface", b"{}"))
        names = about["info"]["features"][label]["names"]
        return tuple(map(str, names)) if isinstance(names, list) else ()
    except (ValueError, KeyError, TypeError):
        return ()


def _hdf5_rows(source: SourceFile) -> PictureRows:
    with h5py.File(source.path, "r") as file:
        # No link to another file or place is followed.
        known = [
            n
            for n in file
            if isinstance(file.get(n, getlink=True), h5py.HardLink) and isinstance(file[n], h5py.Dataset)
        ]
        image, label = _named(source, known)
        layout = _layout(source, image, file[image].shape, file[image].dtype)
        shape = dataset_inside(source.name, file, image).shape
        values = labels_inside(source.name, file, label, shape[0])
        labels = [_label(source, n, value) for n, value in enumerate(values.reshape(-1).tolist())]

    def pictures() -> Iterator[NDArray[np.uint8]]:
        with h5py.File(source.path, "r", rdcc_nbytes=CACHE_BYTES) as file:
            for row in range(shape[0]):
                yield layout(file[image][row])

    return PictureRows(source, labels, (), pictures)


def _rows_of_arrays(
    source: SourceFile, arrays: Mapping[str, object], open_array: Callable[[str], Any]
) -> list[PictureRows] | None:  # fmt: skip
    """Return the pictures of ``.npy`` streams by name; None if no stream has uint8."""
    image = next((name for name in IMAGE_NAMES if name in arrays), None)
    if image is None:
        return None
    with open_array(image) as stream:
        head = NpyStream(source, image, stream)
        if head.dtype != np.uint8:
            return None
    _, label = _named(source, list(arrays))
    layout = _layout(source, image, head.shape, head.dtype)
    with open_array(label) as stream:
        found = NpyStream(source, label, stream)
        check_labels(source.name, head.shape[0], "pictures", prod(found.shape), found.dtype.itemsize)
        values = found.read_all().reshape(-1).tolist()
    labels = [_label(source, row, value) for row, value in enumerate(values)]

    def pictures() -> Iterator[NDArray[np.uint8]]:
        with open_array(image) as stream:
            rows = NpyStream(source, image, stream)
            for _ in range(rows.shape[0]):
                yield layout(rows.take(1)[0])

    return [PictureRows(source, labels, (), pictures)]


def _layout(
    source: SourceFile, name: str, shape: Sequence[int], dtype: Any
) -> Callable[[NDArray[np.uint8]], NDArray[np.uint8]]:  # fmt: skip
    """Return a function that makes [Y, X] or [Y, X, C] of one sample; the array is [N, Y, X], [N, Y, X, C] or [N, C, Y,
    X].
    """
    place = f"{source.name}, {name!r}"
    if dtype != np.uint8:
        raise InvalidArgument(
            f"{place}: its type is {dtype}; expected uint8, or a .npz of the model's own float arrays"
        )
    is_last = len(shape) == 4 and shape[3] in _CHANNELS
    is_first = len(shape) == 4 and shape[1] in _CHANNELS
    if (len(shape) != 3 and is_last == is_first) or 0 in shape:
        raise InvalidArgument(
            f"{place} has the shape {list(shape)}; expected [pictures, height, width], [pictures, height, width, "
            "channels] or [pictures, channels, height, width] with 1, 3 or 4 channels"
        )
    sides = shape[1:3] if is_last or len(shape) == 3 else shape[2:4]
    if sides[0] * sides[1] > MAX_PIXELS:
        raise InvalidArgument(f"{place}: {sides[1]} x {sides[0]} pixels; expected at most {MAX_PIXELS}")

    def arranged(sample: NDArray[np.uint8]) -> NDArray[np.uint8]:
        values = np.ascontiguousarray(sample.transpose(1, 2, 0) if is_first else sample)
        return values[:, :, 0] if values.ndim == 3 and values.shape[2] == 1 else values

    return arranged


def _named(source: SourceFile, names: Sequence[str]) -> tuple[str, str]:
    image = next((name for name in IMAGE_NAMES if name in names), None)
    label = next((name for name in LABEL_NAMES if name in names), None)
    if image is None or label is None:
        raise InvalidArgument(f"{source.name} has {', '.join(names) or 'nothing'}; expected {_EXPECTED}")
    return image, label


def _label(source: SourceFile, row: int, value: object) -> int | str:
    found = value.decode(errors="replace") if isinstance(value, bytes) else value
    if (isinstance(found, int) and not isinstance(found, bool) and 0 <= found < 1 << 20) or (
        isinstance(found, str) and 0 < len(found) <= 200
    ):
        return found
    raise InvalidArgument(
        f"{source.name}, row {row}: the label is {str(value)[:40]!r}; expected a class name, or a number from 0",
        file=source.name, row=row,
    )  # fmt: skip


def _npy_source(data: Path) -> SourceFile:
    state = data.stat()
    return SourceFile(data, data.name, Format.NPZ, state.st_size, state.st_mtime_ns, is_gzip=False)
