"""Report of a classifier on a split: confusion matrix, precision, recall, F1 and AUC.

Axes: N samples, C classes.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from tempfile import TemporaryFile
from typing import IO, Any, Final
from weakref import finalize

import numpy as np
from numpy.typing import NDArray

from rdukit_zoo.metrics import AccuracyMeter

#: Classes above which a report has no confusion matrix, whose size is their square.
MAX_CONFUSION: Final = 1000
#: Number of outputs that are widened at once.
_BLOCK: Final = 1 << 20


class ClassMeter(AccuracyMeter):
    """``accuracy``, and the inputs of ``class_report`` from all batches.

    Memory holds the label of each sample; the outputs are in a temporary file, in float32, which ends with the meter.
    """

    def __init__(self, target: str) -> None:
        """Take the name of the labels' array."""
        super().__init__(target)
        self._labels: list[NDArray[np.int64]] = []
        self._outputs: IO[bytes] | None = None
        self._classes = 0

    def add(self, output: NDArray[Any], given: Mapping[str, NDArray[Any]]) -> None:
        """See ``Meter``."""
        super().add(output, given)
        if self._outputs is None:
            self._outputs, self._classes = TemporaryFile(), output.shape[1]  # noqa: SIM115
            finalize(self, self._outputs.close)
        self._outputs.write(np.ascontiguousarray(output, np.float32).tobytes())
        self._labels.append(given[self._target].astype(np.int64))

    def report(self, names: Sequence[str]) -> dict[str, Any]:
        """Return ``class_report`` of all batches; empty without any."""
        if self._outputs is None:
            return {}
        self._outputs.flush()
        labels_N = np.concatenate(self._labels)
        shape = len(labels_N), self._classes
        return class_report(np.memmap(self._outputs, np.float32, "r", shape=shape), labels_N, names)


def class_report(outputs_NC: NDArray[Any], labels_N: NDArray[Any], names: Sequence[str] = ()) -> dict[str, Any]:
    """Return the figures of each class, their means over the classes that occur, and the confusion matrix.

    ``auc`` is the probability that a sample of the class has a higher share of the class than another sample; ties
    count half. For two classes, ``auc`` is that of the second. A class without samples, or with all of them, has no
    ``auc``. In addition to the outputs, memory holds some numbers per sample and per class, and the confusion matrix.

    Args:
        outputs_NC: before a softmax; may be mapped from a file.
        names: ordered names of the classes; equal names get their numbers. Empty: their numbers.
    """
    count, classes = outputs_NC.shape
    highest_N, sums_N, predicted_N = np.zeros(count), np.zeros(count), np.zeros(count, np.int64)
    rows = max(1, _BLOCK // classes)
    for start in range(0, count, rows):
        part = slice(start, start + rows)
        wide_BC = outputs_NC[part].astype(np.float64)
        highest_N[part] = wide_BC.max(axis=1)
        sums_N[part] = np.exp(wide_BC - highest_N[part, None]).sum(axis=1)
        predicted_N[part] = wide_BC.argmax(axis=1)
    true, found = (np.bincount(values_N, minlength=classes) for values_N in (labels_N, predicted_N))
    right = np.bincount(labels_N[labels_N == predicted_N], minlength=classes)
    each: list[dict[str, float | int | None]] = []
    columns = max(1, _BLOCK // max(count, 1))
    for number in range(classes):
        if number % columns == 0:
            block_NC = outputs_NC[:, number : number + columns].astype(np.float64)
        shares_N = np.exp(block_NC[:, number % columns] - highest_N) / sums_N
        both = int(true[number] + found[number])
        each.append(
            {
                "precision": float(right[number] / found[number]) if found[number] else 0.0,
                "recall": float(right[number] / true[number]) if true[number] else 0.0,
                "f1": 2 * int(right[number]) / both if both else 0.0,
                "auc": area_under_curve(shares_N, labels_N == number),
                "samples": int(true[number]),
            }
        )
    known = [values for values in each if values["samples"]]
    areas = [float(values["auc"]) for values in known if values["auc"] is not None]
    means: dict[str, Any] = {
        f"{name}_macro": float(np.mean([float(values[name] or 0.0) for values in known]))
        for name in ("precision", "recall", "f1")
    }
    area = each[1]["auc"] if classes == 2 else float(np.mean(areas)) if areas else None
    keys = different_names(names) if len(names) == classes else map(str, range(classes))
    report = {**means, "auc": area, "classes": dict(zip(keys, each, strict=True))}
    if classes <= MAX_CONFUSION:
        confusion = np.zeros((classes, classes), np.int64)
        np.add.at(confusion, (labels_N, predicted_N), 1)
        counts = confusion.tolist()
        report["confusion"] = {"rows": "true class", "columns": "predicted class", "counts": counts}
    return report


def different_names(names: Sequence[str]) -> list[str]:
    """Return names of classes; equal names get the number of their class in brackets. Pure. Pure."""
    counts = Counter(names)
    taken = {name for name, count in counts.items() if count == 1}
    found = []
    for number, name in enumerate(names):
        if counts[name] > 1:
            name = f"{name} ({number})"
            while name in taken:
                name += "'"
            taken.add(name)
        found.append(name)
    return found


def area_under_curve(scores_N: NDArray[Any], is_class_N: NDArray[np.bool_]) -> float | None:
    """Return the area under the ROC curve by ranks; None if all samples are of one kind.

    Source: Hanley and McNeil (1982), by the statistic of Mann, Whitney and Wilcoxon.
    """
    positive = int(is_class_N.sum())
    negative = len(is_class_N) - positive
    if not positive or not negative:
        return None
    _, places_N, counts = np.unique(scores_N, return_inverse=True, return_counts=True)
    ranks_N = (np.cumsum(counts) - (counts - 1) / 2)[places_N]
    return float((ranks_N[is_class_N].sum() - positive * (positive + 1) / 2) / (positive * negative))
