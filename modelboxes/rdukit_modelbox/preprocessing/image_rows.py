"""Folders of images → blocks of rows."""

from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from rdukit_modelbox.preprocessing.bad_rows import RowErrors
from rdukit_modelbox.preprocessing.columns import RowBlock
from rdukit_modelbox.preprocessing.row_request import RowPreprocessRequest
from rdukit_modelbox.preprocessing.sources import SourceFile

IMAGES_A_BLOCK: Final = 256
MOST_PIXELS: Final = 1 << 26


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
            bad.add(source.name, None, "the image is in no folder of a class", "<class>/<image>")
            continue
        try:
            image = _read_image(source, request)
        except _BadImage as fault:
            bad.add(source.name, None, fault.reason, fault.legal)
            continue
        pixels = np.asarray(image, np.float32).reshape(-1)
        width = width or len(pixels)
        if len(pixels) != width:
            bad.add(source.name, None, f"{image.width} x {image.height} pixels, others have more or fewer", "one size")
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
    """The image as grey or colour, of the size that is asked for."""
    try:
        with Image.open(source.path) as image:
            if image.width * image.height > MOST_PIXELS:
                raise _BadImage(f"{image.width} x {image.height} pixels", f"at most {MOST_PIXELS} pixels")
            plain = image.convert("L" if request.image_mode == "grey" else "RGB")
        size = (request.image_size, request.image_size) if request.image_size else plain.size
        return plain if plain.size == size else plain.resize(size, Image.Resampling.BILINEAR)
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError, Image.DecompressionBombError) as cause:
        raise _BadImage(f"not readable as an image: {cause}", "PNG, JPEG, BMP, GIF, WebP or TIFF") from cause
