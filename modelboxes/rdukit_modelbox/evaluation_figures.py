"""Logits against labels: accuracy and confusion. Pure. Axes: N samples, C classes."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Classes [N] that the model gives, each with its probability [N], and the confusion matrix [true][given]."""

    predicted_N: NDArray[np.int64]
    probability_N: NDArray[np.float32]
    confusion: list[list[int]]
    accuracy: float


def judge(logits_NC: NDArray[np.float32], labels_N: NDArray[np.int64], classes: int) -> Evaluation:
    """Compare the highest logit with the label. Pure; no samples give accuracy 0."""
    predicted = logits_NC.argmax(axis=1).astype(np.int64)
    shifted = np.exp(logits_NC - logits_NC.max(axis=1, keepdims=True)) if len(logits_NC) else logits_NC
    chosen = shifted[np.arange(len(predicted)), predicted] / shifted.sum(axis=1)
    confusion = np.zeros((classes, classes), np.int64)
    np.add.at(confusion, (labels_N, predicted), 1)
    correct = int((predicted == labels_N).sum())
    accuracy = correct / len(labels_N) if len(labels_N) else 0.0
    return Evaluation(predicted, chosen.astype(np.float32), confusion.tolist(), accuracy)
