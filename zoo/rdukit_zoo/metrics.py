"""Metrics of models, accumulated batch by batch. Arrays in, numbers out.

Axes: N samples, K classes, T steps of time, V sensors.
"""

from collections.abc import Mapping
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from rdukit_zoo.registry import IGNORED

Array = NDArray[Any]
#: Percentiles of the error that are reported.
PERCENTILES: Final = (50, 75, 95)


class Meter(Protocol):
    """Figures of a split, summed up over its batches."""

    def add(self, output: Array, given: Mapping[str, Array]) -> None:
        """Count a batch: the model's outputs, and its inputs and target by name, with samples along the first axis."""
        ...

    def figures(self) -> dict[str, float]:
        """Return the figures by name over all counted batches."""
        ...


class AccuracyMeter:
    """``accuracy``: the share of samples whose highest logit [N, K] is that of the label [N]."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._right = self._count = 0

    def add(self, output: Array, given: Mapping[str, Array]) -> None:
        """See ``Meter``."""
        self._right += int((output.argmax(1) == given[self._target]).sum())
        self._count += len(output)

    def figures(self) -> dict[str, float]:
        """See ``Meter``."""
        return {"accuracy": self._right / max(self._count, 1)}


class MaskedWordsMeter:
    """``accuracy``: the share of predicted tokens [N, T] that are right; labels [N, T] that are -100 do not count."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._right = self._count = 0

    def add(self, output: Array, given: Mapping[str, Array]) -> None:
        """See ``Meter``."""
        labels = given[self._target]
        self._right += int((output.argmax(-1) == labels).sum())
        self._count += int((labels != IGNORED).sum())

    def figures(self) -> dict[str, float]:
        """See ``Meter``."""
        return {"accuracy": self._right / max(self._count, 1)}


class MaskMeter:
    """``dice`` and ``iou`` of masks: probabilities from 0.5 on against targets, over all pixels of the split.

    Dice is twice the overlap over the sum of both areas; IoU is the overlap over the union. Both are 1 if targets and
    outputs are empty.
    """

    def __init__(self, target: str) -> None:
        self._target = target
        self._overlap = self._found = self._true = 0

    def add(self, output: Array, given: Mapping[str, Array]) -> None:
        """See ``Meter``."""
        found, true = output >= 0.5, given[self._target] >= 0.5
        self._overlap += int((found & true).sum())
        self._found += int(found.sum())
        self._true += int(true.sum())

    def figures(self) -> dict[str, float]:
        """See ``Meter``."""
        both, union = self._found + self._true, self._found + self._true - self._overlap
        return {
            "dice": 2 * self._overlap / both if both else 1.0,
            "iou": self._overlap / union if union else 1.0,
        }


class ClassesMeter:
    """``accuracy`` of pixels, ``foreground_accuracy`` of those that are not class 0, and ``iou_<k>`` of each class.

    Logits [N, K, ...] against labels [N, ...]. Source of the figures: CosmicTagger's paper,
    10.3389/frai.2021.649917.
    """

    def __init__(self, target: str, classes: int) -> None:
        self._target, self._classes = target, classes
        self._confusion = np.zeros((classes, classes), np.int64)

    def add(self, output: Array, given: Mapping[str, Array]) -> None:
        """See ``Meter``."""
        pairs = given[self._target].ravel() * self._classes + output.argmax(1).ravel()
        self._confusion += np.bincount(pairs, minlength=self._classes**2).reshape(self._classes, self._classes)

    def figures(self) -> dict[str, float]:
        """See ``Meter``."""
        counts, right = self._confusion, self._confusion.diagonal()
        unions = counts.sum(0) + counts.sum(1) - right
        ious = {f"iou_{k}": float(right[k] / unions[k]) if unions[k] else 1.0 for k in range(self._classes)}
        return {
            "accuracy": float(right.sum() / max(counts.sum(), 1)),
            "foreground_accuracy": float(right[1:].sum() / max(counts[1:].sum(), 1)),
            **ious,
        }


class ErrorMeter:
    """``mae``, ``r2`` and the percentiles of each sample's Euclidean error, such as ``error_p75``.

    Outputs and targets [N, ...] are multiplied by ``scale`` first. ``r2`` is one minus the squared error over the
    targets' squared distance from their mean, over all elements.
    """

    def __init__(self, target: str, scale: float = 1.0) -> None:
        self._target, self._scale = target, scale
        self._errors: list[Array] = []
        self._absolute = self._square = self._sum = self._sum_of_squares = 0.0
        self._count = 0

    def add(self, output: Array, given: Mapping[str, Array]) -> None:
        """See ``Meter``."""
        target = given[self._target].reshape(len(output), -1).astype(np.float64) * self._scale
        error = output.reshape(len(output), -1).astype(np.float64) * self._scale - target
        self._errors.append(np.sqrt((error**2).sum(1)))
        self._absolute += float(np.abs(error).sum())
        self._square += float((error**2).sum())
        self._sum += float(target.sum())
        self._sum_of_squares += float((target**2).sum())
        self._count += error.size

    def figures(self) -> dict[str, float]:
        """See ``Meter``."""
        errors = np.concatenate([*self._errors, np.zeros(0)])
        spread = self._sum_of_squares - self._sum**2 / max(self._count, 1)
        found = {"mae": self._absolute / max(self._count, 1), "r2": 1 - self._square / spread if spread else 0.0}
        for percentile in PERCENTILES:
            found[f"error_p{percentile}"] = float(np.percentile(errors, percentile)) if len(errors) else 0.0
        return found


class ForecastMeter:
    """``mae`` and ``rmse`` of forecasts [N, T, V], ``mae_last_value`` of repeating the last reading, and the gain.

    Targets of 0 are missing readings and are ignored. The first value of the history [N, T, V, ...] is the speed; if
    its last reading is missing, the latest one before it counts. ``gain`` is one minus the ratio of both errors.
    Source: Li et al., arXiv 1707.01926, masked errors.
    """

    def __init__(self, target: str, history: str) -> None:
        self._target, self._history = target, history
        self._absolute = self._square = self._last_absolute = 0.0
        self._count = 0

    def add(self, output: Array, given: Mapping[str, Array]) -> None:
        """See ``Meter``."""
        target, read_NTV = given[self._target], given[self._history][..., 0]
        last_NV = read_NTV[:, 0]
        for step in range(1, read_NTV.shape[1]):
            last_NV = np.where(read_NTV[:, step] != 0, read_NTV[:, step], last_NV)
        is_read = target != 0
        error = (output - target)[is_read].astype(np.float64)
        self._absolute += float(np.abs(error).sum())
        self._square += float((error**2).sum())
        self._last_absolute += float(np.abs(last_NV[:, None] - target)[is_read].sum(dtype=np.float64))
        self._count += int(is_read.sum())

    def figures(self) -> dict[str, float]:
        """See ``Meter``."""
        count = max(self._count, 1)
        mae, last = self._absolute / count, self._last_absolute / count
        return {
            "mae": mae, "rmse": float(np.sqrt(self._square / count)), "mae_last_value": last,
            "gain": 1 - mae / last if last else 0.0,
        }  # fmt: skip


class ReconstructionMeter:
    """No figure in addition to the loss, for a model whose input is its target."""

    def add(self, output: Array, given: Mapping[str, Array]) -> None:
        """See ``Meter``."""

    def figures(self) -> dict[str, float]:
        """See ``Meter``."""
        return {}
