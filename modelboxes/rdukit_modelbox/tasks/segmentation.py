"""Segmentation of images and volumes: a mask by probabilities, or a class for each pixel by logits."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from rdukit_modelbox.tasks.arrays import Arrays, ArrayTask
from rdukit_modelbox.tasks.pictures import draw_rows, grey_tile, middle_slice
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

    def draw(self, given: Arrays, output: NDArray[Any]) -> Image.Image:
        """Input, answer and target of each sample, volumes by their middle slice."""
        image, target = given.values()
        answer = output.argmax(1) if output.ndim > target.ndim else output
        rows = {"input": image, "answer": answer, "target": target.astype(np.float32)}
        return draw_rows({title: [grey_tile(middle_slice(v)) for v in values] for title, values in rows.items()})
