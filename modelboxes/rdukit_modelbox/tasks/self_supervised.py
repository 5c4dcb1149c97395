"""Self-supervised models: their output is turned back into their input, by physics or by a decoder."""

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray
from PIL import Image

from rdukit_modelbox.tasks.arrays import Arrays, ArrayTask
from rdukit_modelbox.tasks.pictures import draw_rows, grey_tile, middle_slice, spread
from rdukit_modelbox.tasks.program import ModelProgram
from rdukit_zoo.metrics import Meter, ReconstructionMeter


class SelfSupervised(ArrayTask):
    """Input → (loss, output); there is no target. See ``Task``."""

    def meter(self, program: ModelProgram) -> Meter:
        """Return a meter without figures; there is only the loss."""
        return ReconstructionMeter()

    def draw(self, given: Arrays, output: NDArray[Any], channels: Sequence[str] = ()) -> Image.Image:
        """Return the input, and each channel of the output, volumes by their middle slice."""
        shown = spread(len(output))
        (inputs,), output = (values[shown] for values in given.values()), output[shown]
        rows = {"input": [grey_tile(middle_slice(values)) for values in inputs]}
        for channel, title in enumerate(titles_of(output.shape[1], channels)):
            rows[title] = [grey_tile(middle_slice(values[channel : channel + 1])) for values in output]
        return draw_rows(rows)


def titles_of(count: int, channels: Sequence[str] = ()) -> Sequence[str]:
    """Return the titles of an output's ``count`` channels: the model's own names if it has that many."""
    if len(channels) == count:
        return channels
    return ["prediction"] if count == 1 else [f"prediction, channel {number}" for number in range(1, count + 1)]
