"""Pictures of results: rows of small grey images, and lines over time.

Axes: N samples, Y and X rows and columns, T steps.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

#: Side of a tile and the space between tiles, in pixels.
TILE: Final = 112
GAP: Final = 6
#: Samples in a picture.
SHOWN: Final = 8
#: Height of a row's title, and the size of its letters.
HEAD: Final = 20
_LETTERS: Final = 14
COLOURS: Final = ("#1f77b4", "#d62728", "#2ca02c")


def spread(count: int) -> list[int]:
    """Return which of ``count`` samples a picture shows: at most ``SHOWN``, evenly spaced."""
    return sorted({round(place) for place in np.linspace(0, count - 1, min(count, SHOWN))})


def grey_tile(values_YX: NDArray[Any], limits: tuple[float, float] | None = None) -> Image.Image:
    """Return values as a grey tile, enlarged without smoothing.

    ``limits`` are black and white; without them the least and the greatest value are.
    """
    low, high = limits or (float(values_YX.min()), float(values_YX.max()))
    grey = (values_YX - low) / (high - low or 1.0) * 255
    picture = Image.fromarray(grey.astype(np.uint8), "L")
    return picture.resize((TILE, TILE), Image.Resampling.NEAREST).convert("RGB")


def middle_slice(values: NDArray[Any]) -> NDArray[Any]:
    """Return an image [Y, X] of a sample: the first channel, and the middle of further leading axes."""
    values = values[0] if values.ndim > 2 else values
    while values.ndim > 2:
        values = values[len(values) // 2]
    return values


def draw_rows(rows: Mapping[str, Sequence[Image.Image]]) -> Image.Image:
    """Return tiles in rows, each with its title above it."""
    columns = max(len(tiles) for tiles in rows.values())
    height, font = len(rows) * (TILE + GAP + HEAD), ImageFont.load_default(_LETTERS)
    width = max(columns * (TILE + GAP), *(round(font.getlength(title)) + GAP for title in rows))
    sheet = Image.new("RGB", (width + GAP, height + GAP), "white")
    pen = ImageDraw.Draw(sheet)
    for number, (title, tiles) in enumerate(rows.items()):
        top = GAP + number * (TILE + GAP + HEAD)
        pen.text((GAP, top), title, fill="black", font=font)
        for column, tile in enumerate(tiles):
            sheet.paste(tile, (GAP + column * (TILE + GAP), top + HEAD))
    return sheet


def line_tile(lines: Sequence[NDArray[Any]], low: float, high: float) -> Image.Image:
    """Return lines [T] over a common axis as a tile; the first is blue, the second red. NaN leaves a gap."""
    tile = Image.new("RGB", (TILE, TILE), "white")
    pen = ImageDraw.Draw(tile)
    pen.rectangle((0, 0, TILE - 1, TILE - 1), outline="#999999")
    for values_T, colour in zip(lines, COLOURS, strict=False):
        across = np.linspace(4, TILE - 5, len(values_T))
        up = TILE - 5 - (values_T - low) / (high - low or 1.0) * (TILE - 10)
        points = [None if np.isnan(y) else (float(x), float(y)) for x, y in zip(across, up, strict=True)]
        for before, after in itertools.pairwise(points):
            if before is not None and after is not None:
                pen.line((*before, *after), fill=colour, width=2)
    return tile


def marked_tile(values_YX: NDArray[Any], marks: Sequence[tuple[float, float]]) -> Image.Image:
    """Return a grey tile with a cross at each mark (row, column), in values' pixels: large blue, small red."""
    tile = grey_tile(values_YX)
    pen = ImageDraw.Draw(tile)
    for (row, column), colour, arm in zip(marks, COLOURS, (14, 6), strict=False):
        y, x = (row + 0.5) / len(values_YX) * TILE, (column + 0.5) / values_YX.shape[1] * TILE
        pen.line((x - arm, y, x + arm, y), fill=colour, width=2)
        pen.line((x, y - arm, x, y + arm), fill=colour, width=2)
    return tile
