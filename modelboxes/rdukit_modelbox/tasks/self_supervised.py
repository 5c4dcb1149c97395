"""Self-supervised models: what they give is turned back into what came in, by physics or by a decoder."""

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
        """No figure beside the loss."""
        return ReconstructionMeter()

    def draw(self, given: Arrays, output: NDArray[Any]) -> Image.Image:
        """Input, and each channel of the output, volumes by their middle slice."""
        shown = spread(len(output))
        (inputs,), output = (values[shown] for values in given.values()), output[shown]
        rows = {"input": [grey_tile(middle_slice(values)) for values in inputs]}
        for channel in range(output.shape[1]):
            rows[f"output {channel}"] = [grey_tile(middle_slice(values[channel : channel + 1])) for values in output]
        return draw_rows(rows)
