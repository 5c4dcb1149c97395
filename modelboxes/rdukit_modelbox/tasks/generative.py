"""Generative models: noise in, samples out, judged by eye."""

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray
from PIL import Image

from rdukit_modelbox.tasks.arrays import Arrays, ArrayTask
from rdukit_modelbox.tasks.pictures import draw_rows, grey_tile, middle_slice, spread
from rdukit_modelbox.tasks.program import ModelProgram
from rdukit_zoo.metrics import Meter, ReconstructionMeter


class Generative(ArrayTask):
    """(noise [N, Z], samples of the data [N, ...]) → (loss, samples [N, ...]); see ``Task``."""

    def meter(self, program: ModelProgram) -> Meter:
        """Return a meter without figures: adversarial losses are hardly comparable."""
        return ReconstructionMeter()

    def draw(self, given: Arrays, output: NDArray[Any], channels: Sequence[str] = ()) -> Image.Image:
        """Return a picture of generated samples below samples of the data."""
        shown = spread(len(output))
        real = list(given.values())[-1]
        return draw_rows(
            {
                "data, to compare": [grey_tile(middle_slice(values)) for values in real[shown]],
                "prediction: drawn from noise": [grey_tile(middle_slice(values)) for values in output[shown]],
            }
        )
