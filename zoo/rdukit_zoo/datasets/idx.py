"""Read idx files, plain or gzipped: the format of MNIST and its relatives.

Axes: N images, H rows, W columns.
"""

import gzip
import zlib
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rdukit.errors import InvalidArgument, NotFound

#: Third byte of an idx file: the item type. Only unsigned bytes occur in image sets.
_UNSIGNED_BYTE: Final = 8
_GZIP_MAGIC: Final = b"\x1f\x8b"

Bytes = NDArray[np.uint8]


def read_idx(path: Path) -> Bytes:
    """The array in the idx file at ``path``, uint8, in the file's own shape.

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
    """The array in ``data``, an idx file's content; ``name`` is for messages.

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
    """The idx file ``stem`` in ``folder`` or its ``MNIST/raw`` below, gzipped or not; torchvision's layout."""
    for place in (folder, folder / "MNIST" / "raw", folder / "raw"):
        for name in (stem, f"{stem}.gz"):
            if (place / name).is_file():
                return place / name
    return None
