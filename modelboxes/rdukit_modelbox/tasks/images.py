"""Classification of images."""

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray
from PIL import Image, ImageDraw

from rdukit_modelbox.tasks.arrays import Arrays, ArrayTask
from rdukit_modelbox.tasks.class_report import ClassMeter
from rdukit_modelbox.tasks.pictures import COLOURS, draw_rows, grey_tile, middle_slice, spread
from rdukit_modelbox.tasks.program import ModelProgram
from rdukit_zoo.metrics import Meter


class ImageClassification(ArrayTask):
    """(image [B, C, Y, X], label [B]) → (loss, logits [B, K]); see ``Task``."""

    def meter(self, program: ModelProgram) -> Meter:
        """Return the meter of accuracy."""
        return ClassMeter(program.array_names[-1])

    def draw(self, given: Arrays, output: NDArray[Any], channels: Sequence[str] = ()) -> Image.Image:
        """Return each image with its predicted class, red if it is wrong."""
        shown = spread(len(output))
        images, labels = (values[shown] for values in given.values())
        tiles = []
        for image, label, answer in zip(images, labels, output[shown].argmax(1), strict=True):
            tile = grey_tile(middle_slice(image))
            ImageDraw.Draw(tile).text((4, 2), str(answer), fill=COLOURS[0] if answer == label else COLOURS[1])
            tiles.append(tile)
        return draw_rows({"input, with the prediction: blue where right, red where wrong": tiles})
