"""Forecasting: predict the readings of several sensors from their history."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from rdukit_modelbox.tasks.arrays import Arrays, ArrayTask
from rdukit_modelbox.tasks.pictures import draw_rows, line_tile, spread
from rdukit_modelbox.tasks.program import ModelProgram
from rdukit_zoo.metrics import ForecastMeter, Meter


class Forecasting(ArrayTask):
    """(history [B, T, V, F], future [B, T, V]) → (loss, forecast [B, T, V]); see ``Task``. 0 is a missing reading."""

    def meter(self, program: ModelProgram) -> Meter:
        """Return the meter of masked errors, and of the gain over repeating the last reading."""
        history, future = program.array_names
        return ForecastMeter(future, history)

    def weight(self, given: Arrays) -> int:
        """Return the number of readings that are not missing."""
        return int((list(given.values())[-1] != 0).sum())

    def draw(self, given: Arrays, output: NDArray[Any], channels: Sequence[str] = ()) -> Image.Image:
        """Return history and truth of the first sensor, blue, and the prediction, red."""
        shown = spread(len(output))
        history, future = (np.where(values == 0, np.nan, values)[shown] for values in given.values())
        past, output = history[..., 0], output[shown]
        low, high = float(np.nanmin([np.nanmin(past), np.nanmin(future)])), float(np.nanmax(past))
        tiles = []
        for before, after, answer in zip(past[..., 0], future[..., 0], output[..., 0], strict=True):
            gap = np.full(len(before) - 1, np.nan)
            tiles.append(
                line_tile([np.concatenate([before, after]), np.concatenate([gap, before[-1:], answer])], low, high)
            )
        return draw_rows({"input and truth blue, prediction red": tiles})
