"""Segmentation of images and volumes: a mask by probabilities, or a class for each pixel by logits."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from rdukit_modelbox.tasks.arrays import Arrays, ArrayTask
from rdukit_modelbox.tasks.pictures import draw_rows, grey_tile, middle_slice, spread
from rdukit_modelbox.tasks.program import ModelProgram
from rdukit_zoo.metrics import ClassesMeter, MaskMeter, Meter


class Segmentation(ArrayTask):
    """(image [B, C, ...], target) → (loss, probabilities of the target's shape, or logits [B, K, ...]); see ``Task``.

    A target of floats is a mask; one of integers has a class for each pixel, and the output one axis more.
    """

    def meter(self, program: ModelProgram) -> Meter:
        """Dice and IoU of a mask; accuracy and IoU of each of several classes."""
        target = program.array_names[-1]
        classes = program.output_shape[1] if program.is_integer(target) else 0
        return ClassesMeter(target, classes) if classes else MaskMeter(target)

    def draw(self, given: Arrays, output: NDArray[Any], channels: Sequence[str] = ()) -> Image.Image:
        """Return input, prediction and truth of each sample, volumes by their middle slice."""
        shown = spread(len(output))
        image, target = (values[shown] for values in given.values())
        answer = output[shown].argmax(1) if np.issubdtype(target.dtype, np.integer) else output[shown]
        limits = (0.0, output.shape[1] - 1.0) if np.issubdtype(target.dtype, np.integer) else (0.0, 1.0)
        rows = {"input": [grey_tile(middle_slice(values)) for values in image]}
        for title, masks in (("prediction", answer), ("truth", target)):
            rows[title] = [grey_tile(middle_slice(values), limits) for values in masks]
        return draw_rows(rows)
