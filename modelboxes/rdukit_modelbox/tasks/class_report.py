"""Report of a classifier on a split: confusion matrix, precision, recall, F1 and AUC. Pure.

Axes: N samples, C classes.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rdukit_zoo.metrics import AccuracyMeter

#: Classes above which a report has no confusion matrix, whose size is their square.
MAX_CONFUSION: Final = 1000


class ClassMeter(AccuracyMeter):
    """``accuracy``, and the outputs [N, C] and labels [N] of all batches, for ``class_report``."""

    def __init__(self, target: str) -> None:
        """Take the name of the labels' array."""
        super().__init__(target)
        self._outputs: list[NDArray[Any]] = []
        self._labels: list[NDArray[Any]] = []

    def add(self, output: NDArray[Any], given: Mapping[str, NDArray[Any]]) -> None:
        """See ``Meter``."""
        super().add(output, given)
        self._outputs.append(output.copy())
        self._labels.append(given[self._target].copy())

    def report(self, names: Sequence[str]) -> dict[str, Any]:
        """Return ``class_report`` of all batches; empty without any."""
        if not self._outputs:
            return {}
        return class_report(np.concatenate(self._outputs), np.concatenate(self._labels), names)


def class_report(outputs_NC: NDArray[Any], labels_N: NDArray[Any], names: Sequence[str] = ()) -> dict[str, Any]:
    """Return the figures of each class, their means over the classes that occur, and the confusion matrix.

    ``auc`` is the probability that a sample of the class has a higher share of it than another sample; ties count
    half. Of two classes it is that of the second. A class without samples, or with all of them, has none.

    Args:
        outputs_NC: before a softmax.
        names: of the classes, in their order; empty: their numbers.
    """
    classes = outputs_NC.shape[1]
    wide_NC = outputs_NC.astype(np.float64)
    powers_NC = np.exp(wide_NC - wide_NC.max(axis=1, keepdims=True))
    shares_NC = powers_NC / powers_NC.sum(axis=1, keepdims=True)
    confusion = np.zeros((classes, classes), np.int64)
    np.add.at(confusion, (labels_N, outputs_NC.argmax(axis=1)), 1)
    right, true, found = confusion.diagonal(), confusion.sum(1), confusion.sum(0)
    each: dict[str, dict[str, float | int | None]] = {}
    for number in range(classes):
        both = int(true[number] + found[number])
        each[names[number] if len(names) == classes else str(number)] = {
            "precision": float(right[number] / found[number]) if found[number] else 0.0,
            "recall": float(right[number] / true[number]) if true[number] else 0.0,
            "f1": 2 * int(right[number]) / both if both else 0.0,
            "auc": area_under_curve(shares_NC[:, number], labels_N == number),
            "samples": int(true[number]),
        }
    known = [values for values in each.values() if values["samples"]]
    areas = [float(values["auc"]) for values in known if values["auc"] is not None]
    means: dict[str, Any] = {
        f"{name}_macro": float(np.mean([float(values[name] or 0.0) for values in known]))
        for name in ("precision", "recall", "f1")
    }
    second = list(each.values())[1]["auc"] if classes == 2 else None
    report = {**means, "auc": second if classes == 2 else float(np.mean(areas)) if areas else None, "classes": each}
    if classes <= MAX_CONFUSION:
        counts = confusion.tolist()
        report["confusion"] = {"rows": "true class", "columns": "predicted class", "counts": counts}
    return report


def area_under_curve(scores_N: NDArray[Any], is_class_N: NDArray[np.bool_]) -> float | None:
    """Return the area under the ROC curve by ranks; None where all samples are of one kind.

    Source: Hanley and McNeil (1982), by the statistic of Mann, Whitney and Wilcoxon.
    """
    positive = int(is_class_N.sum())
    negative = len(is_class_N) - positive
    if not positive or not negative:
        return None
    _, places_N, counts = np.unique(scores_N, return_inverse=True, return_counts=True)
    ranks_N = (np.cumsum(counts) - (counts - 1) / 2)[places_N]
    return float((ranks_N[is_class_N].sum() - positive * (positive + 1) / 2) / (positive * negative))
