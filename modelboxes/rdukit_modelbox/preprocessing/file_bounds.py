"""Bounds of files of arrays and tables, checked by their headers before a value is decoded.

A short file can stand for many values: compressed zeros, repeated texts, chunks that were never written. Memory that
a box is limited to counts as the machine's.
"""

import os
import resource
from collections.abc import Sequence
from math import prod
from typing import IO, Any, Final

import h5py  # type: ignore[import-untyped]
import numpy as np
from numpy.lib import format as npy

from rdukit.errors import InvalidArgument
from rdukit.units import format_bytes

#: Bytes of the rows that a chunk of an HDF5 file touches, at most: its cache holds them, so that each is read once.
CACHE_BYTES: Final = 1 << 28
#: Values of a row at most.
MAX_ROW_VALUES: Final = 1 << 26
#: Bytes of a label as a Python object, about.
LABEL_BYTES: Final = 64
#: Bytes of a text in a column, or of a picture, at most.
MAX_VALUE_BYTES: Final = 1 << 28
#: Bytes, and values, of one column in one row group of a Parquet file at most.
MAX_COLUMN_BYTES: Final = 1 << 32
MAX_COLUMN_VALUES: Final = 1 << 27


def usable_bytes() -> int:
    """Return half of the memory that this process may have: arrays are in memory twice while splits are written."""
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit, _ = resource.getrlimit(resource.RLIMIT_DATA)
    return (physical if limit == resource.RLIM_INFINITY else min(physical, limit)) // 2


def require_memory(place: str, count: int, each_bytes: int, what: str) -> None:
    """Refuse more values than fit into memory.

    Raises:
        InvalidArgument: says how many there are, and how many fit.
    """
    usable = usable_bytes()
    if count * each_bytes > usable:
        raise InvalidArgument(
            f"{place}: {count} {what} take {format_bytes(count * each_bytes)} in memory; expected at most "
            f"{usable // max(each_bytes, 1)}, which take {format_bytes(usable)}; bring fewer, or smaller ones"
        )


def dataset_inside(name: str, file: Any, array: str) -> Any:
    """Return an HDF5 file's data set whose values lie in that file, in chunks of bounded size.

    Args:
        name: of the file, for messages.
    Raises:
        InvalidArgument: its values lie in other files, or its chunks are too large.
    """
    data, place = file[array], f"{name}, {array!r}"
    if data.is_virtual or data.external or not isinstance(file.get(array, getlink=True), h5py.HardLink):
        raise InvalidArgument(f"{place}: its values are in other files; expected a self-contained file")
    if data.chunks:
        touched = data.chunks[0] * prod(data.shape[1:]) * data.dtype.itemsize
        if touched > CACHE_BYTES or prod(data.chunks) * data.dtype.itemsize > CACHE_BYTES:
            raise InvalidArgument(
                f"{place}: its chunks {list(data.chunks)} are of {data.chunks[0]} rows, {format_bytes(touched)}; "
                f"expected chunks of rows of at most {format_bytes(CACHE_BYTES)}: write it with fewer rows in a chunk"
            )
    if prod(data.shape[1:]) > MAX_ROW_VALUES:
        raise InvalidArgument(f"{place}: a row has {prod(data.shape[1:])} values; expected at most {MAX_ROW_VALUES}")
    return data


def check_labels(name: str, rows: int, what: str, labels: int, each_bytes: int) -> None:
    """Refuse labels that are not as many as the rows, or do not fit into memory.

    Raises:
        InvalidArgument: says how many of each there are, or how many fit.
    """
    if labels != rows:
        raise InvalidArgument(f"{name} has {rows} {what} and {labels} labels; expected equal numbers")
    require_memory(name, rows, max(each_bytes, LABEL_BYTES), "labels")


def labels_inside(name: str, file: Any, array: str, rows: int, what: str = "pictures") -> Any:
    """Return an HDF5 file's labels, as many as it has rows; texts are read one at a time.

    Raises:
        InvalidArgument: as ``dataset_inside``, they are too many, or a text is too long.
    """
    data = dataset_inside(name, file, array)
    check_labels(name, rows, what, prod(data.shape), data.dtype.itemsize)
    if data.dtype.kind != "O":
        return data[:]
    found = np.empty(rows, object)
    for row in range(rows):
        value = data[row] if data.ndim == 1 else data[np.unravel_index(row, data.shape)]
        if isinstance(value, bytes | str) and len(value) > MAX_ROW_VALUES:
            raise InvalidArgument(
                f"{name}, {array!r}, row {row}: the label has {len(value)} characters; expected a short name"
            )
        found[row] = value[:1000] if isinstance(value, bytes | str) else value
    return found


def check_npy_headers(place: str, streams: Sequence[tuple[str, IO[bytes]]]) -> None:
    """Refuse ``.npy`` streams whose arrays do not fit into memory, by their headers.

    Raises:
        InvalidArgument: says their bytes, and how many fit. ValueError: a header is damaged.
    """
    needed = 0
    for _, stream in streams:
        read = npy.read_array_header_1_0 if npy.read_magic(stream) == (1, 0) else npy.read_array_header_2_0
        shape, _, dtype = read(stream)
        needed += prod(shape) * dtype.itemsize
    require_memory(f"{place}, {', '.join(name for name, _ in streams)}", needed, 1, "bytes")


def check_parquet(name: str, metadata: Any) -> None:
    """Refuse a Parquet file by its metadata: too many rows, values or bytes in a row group.

    Raises:
        InvalidArgument: says how many, and what is expected.
    """
    require_memory(name, metadata.num_rows, 1, "rows")
    for group in range(metadata.num_row_groups):
        for index in range(metadata.num_columns):
            column = metadata.row_group(group).column(index)
            if column.total_uncompressed_size > MAX_COLUMN_BYTES or column.num_values > MAX_COLUMN_VALUES:
                raise InvalidArgument(
                    f"{name}, column {column.path_in_schema!r}: {column.num_values} values of "
                    f"{format_bytes(column.total_uncompressed_size)} in row group {group}; expected at most "
                    f"{MAX_COLUMN_VALUES} of {format_bytes(MAX_COLUMN_BYTES)}: write smaller row groups"
                )
