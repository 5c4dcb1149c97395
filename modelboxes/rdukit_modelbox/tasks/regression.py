"""Regression: numbers of each sample, such as a position or a growth."""

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray
from PIL import Image, ImageDraw

from rdukit_modelbox.tasks.arrays import Arrays, ArrayTask
from rdukit_modelbox.tasks.pictures import COLOURS, TILE, draw_rows, marked_tile, middle_slice, spread
from rdukit_modelbox.tasks.program import ModelProgram
from rdukit_zoo.metrics import ErrorMeter, Meter


class Regression(ArrayTask):
    """(inputs, target [B, ...]) → (loss, prediction [B, ...]); see ``Task``."""

    def meter(self, program: ModelProgram) -> Meter:
        """Mean absolute error, R2 and percentiles of the error, in the model's unit."""
        return ErrorMeter(program.array_names[-1], program.output_scale)

    def draw(self, given: Arrays, output: NDArray[Any], channels: Sequence[str] = ()) -> Image.Image:
        """Return positions as crosses in their images, truth blue and prediction red; else predictions over truths."""
        *inputs, targets = given.values()
        images = inputs[0]
        if images.ndim == 4 and targets.shape[1:] == (2,):
            side, shown = images.shape[-1], spread(len(output))
            tiles = [
                marked_tile(middle_slice(image), [tuple(target * side), tuple(answer * side)])
                for image, target, answer in zip(images[shown], targets[shown], output[shown], strict=True)
            ]
            return draw_rows({"input, with the truth blue and the prediction red": tiles})
        low, high = float(min(targets.min(), output.min())), float(max(targets.max(), output.max()))
        tile = Image.new("RGB", (TILE, TILE), "white")
        pen = ImageDraw.Draw(tile)
        pen.line((0, TILE, TILE, 0), fill="#999999")
        for target, answer in zip(targets.ravel(), output.ravel(), strict=True):
            x, y = (float((value - low) / (high - low or 1.0)) * (TILE - 8) + 4 for value in (target, answer))
            pen.ellipse((x - 2, TILE - y - 2, x + 2, TILE - y + 2), fill=COLOURS[0])
        return draw_rows({"prediction over truth": [tile]})
